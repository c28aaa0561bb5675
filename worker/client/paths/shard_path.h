#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "gradrail/clock.h"
#include "ps/protocol/exchange_layout.h"
#include "ps/protocol/slot_places.h"
#include "transport/context.h"
#include "transport/prepared_puts.h"
#include "transport/registration.h"
#include "worker/client/gpu_variables.h"

namespace gradrail::ps::proto {
class JoinPath;
class Welcome;
}  // namespace gradrail::ps::proto

namespace gradrail::worker {

struct ShardLink;

/// A transport in use by a client, with the client's memory registered.
struct OpenContext {
  std::string transport;
  /// A transport::rails::BundleContext, unless it is `one`. The kernel chooses the source for each of several rails.
  enum class Lanes : uint8_t { one, streams, rails };
  Lanes lanes = Lanes::one;
  std::unique_ptr<transport::Context> context;
  std::unique_ptr<transport::MemoryRegion> parameters;
  std::unique_ptr<transport::MemoryRegion> gradients;
  std::unique_ptr<transport::MemoryRegion> gpu[2];  ///< GPU block, indexed by NicGpuTransfer; null: not reachable
};

/// Registers the memory of a model with open.context. `shard_on_gpu`: a GPU of a shard may map the gradients.
/// Errors  Those of Context::register_memory().
absl::Status register_model(OpenContext& open, RegistrationBudget& budget, MemorySpan parameters, MemorySpan gradients,
                            bool shard_on_gpu);

/// The GPU memory that a path offers to its shard, and the way on which the shard may reach it.
struct GpuOffer {
  GpuVariables* variables = nullptr;  ///< null: they are in host memory
  GpuTransfer way = GpuTransfer::staged;
};

/// A data connection of a worker to a shard, from connecting to closing. Only open() blocks: PathManager delivers the
/// events of the transport and calls advance(), so that a path can be tested beside the one in use.
///
///   worker                              shard
///     <--------------------- challenge
///     JoinPath, with a proof ----------->       keys of memory, seed of a pattern
///     <--------------------- Welcome         keys of the slots
///     pattern ----------------------->
///     <--------------------- pattern
///     Ready ------------------------->       from here on the shard answers on this path only
///     <--------------------- Active
///
/// Invariants
///   1. why() is empty exactly while phase() is not `failed`; the first cause counts.
///   2. A handshake message is sent once: what waits for room in the transport is retried by advance().
/// Threads  Owner thread of the client.
class ShardPath {
 public:
  enum class Phase : uint8_t {
    handshake,   ///< the shard's challenge, or our JoinPath, is on its way
    checking,    ///< Welcome has arrived; patterns are on their way
    ready,       ///< both patterns have arrived intact; the shard still uses another path
    activating,  ///< Ready is on its way
    active,      ///< the exchange uses this path
    failed,      ///< why() has the cause
  };

  /// Writes the proof of each member of JoinPath for this challenge.
  using Prove = std::function<void(ps::proto::JoinPath& join_path, const std::string& challenge)>;
  /// Connects, and registers the memory that belongs to this path alone. `join_path` has the member.
  /// Errors  UNAVAILABLE, DEADLINE_EXCEEDED: the shard cannot be reached. RESOURCE_EXHAUSTED: registration was refused.
  static absl::StatusOr<std::unique_ptr<ShardPath>> open(ShardLink& link, OpenContext& context,
                                                         const std::string& address,
                                                         const ps::proto::JoinPath& join_path, Prove prove,
                                                         RegistrationBudget& budget, const MemoryBinder& place,
                                                         const GpuOffer& offer, TimePoint deadline);
  ~ShardPath();

  /// Sends the next message of the handshake. True while it waits for room in the transport: call again soon.
  bool advance();
  /// phase() must be ready.
  void activate();

  // Events of the transport for this path.
  void on_message(absl::Span<const std::byte> bytes);
  void on_check(uint64_t immediate);
  void on_lost(std::string_view cause);

  /// Whether the shard has reported the end of a lower worker; resets the flag.
  bool take_lower_left() { return std::exchange(lower_left_, false); }

  Phase phase() const { return phase_; }
  const std::string& why() const { return why_; }
  ShardLink& link() const { return link_; }
  OpenContext& context() const { return context_; }
  transport::Connection& connection() const { return *connection_; }
  std::string describe() const;         ///< text for people, valid also after the connection has closed
  std::string connection_path() const;  ///< transport::Connection::path(), valid also after it has closed
  std::string shown_path() const;       ///< connection_path(), and the way out of GPU memory if it is a direct one
  std::string name() const;             ///< shown_path(), and whether memory is mapped: bytes are counted by this name
  bool was_welcome() const { return was_welcome_; }
  /// The connection ended while the pattern was under way.
  bool lost_in_check() const { return lost_in_check_; }
  bool slots_on_gpu() const { return payload_on_gpu_; }  ///< the shard's

  // The exchange uses these functions once the path is active.
  /// Puts the gradients of a bucket into the shard's memory, then its header, which announces them. Without gradients,
  /// `gradients.bytes` is 0. `posted` counts the puts that the transport has taken, and is 0 for a bucket that begins.
  /// False: the transport has no room for the rest; call again after the next events. A lost connection counts as sent:
  /// its peer_lost event is under way, and the exchange repeats the bucket.
  /// `gradients`: in the client's host memory; not used where a network device reads GPU memory.
  bool send_bucket(uint32_t bucket_index, MemorySpan gradients, size_t& posted);
  /// Buckets that share their place at the shard with this one. It leaves after the answer to the first one, and the
  /// second one after its own answer. None where the shard reads gradients and stores parameters in mapped memory.
  std::optional<uint32_t> bucket_before(uint32_t bucket_index) const {
    return uses_places() ? places_.before(bucket_index) : std::nullopt;
  }
  std::optional<uint32_t> bucket_after(uint32_t bucket_index) const {
    return uses_places() ? places_.after(bucket_index) : std::nullopt;
  }
  bool gradients_mapped() const { return gradients_mapped_; }
  /// Way of its bytes out of and into GPU memory; staged also where no GPU is used.
  GpuTransfer way() const { return way_; }
  bool writes_by_nic() const { return nic_region() != nullptr; }
  std::string left_out_text() const;  ///< "; left out: …": rails that could not be reached; may be empty
  std::string mapped_text() const;    ///< text for people that follows describe(); may be empty
  const std::string& device_refused() const { return device_refused_; }
  ps::SlotHeader* slot_headers() const { return reinterpret_cast<ps::SlotHeader*>(headers_.memory.data()); }
  const ps::ReturnHeader* return_headers() const {
    return reinterpret_cast<const ps::ReturnHeader*>(returns_.memory.data());
  }
  /// Address at which the shard puts the parameters of a bucket in bf16 or delta.
  const std::byte* packed_parameters(uint32_t bucket_index, ps::ElementRange range) const;

 private:
  bool uses_places() const;
  ShardPath(ShardLink& link, OpenContext& context, const ps::proto::JoinPath& join_path);
  void offer(const GpuOffer& offer);
  absl::Status prepare(uint32_t bucket_index, MemorySpan gradients);
  transport::LocalSlice gradients_source(MemorySpan gradients) const;
  transport::RemoteSlice slot(uint32_t bucket_index) const;
  const transport::MemoryRegion* nic_region() const;
  absl::Status write_check();
  transport::LocalSlice check_source() const;
  std::string compare_check();
  void take_welcome(const ps::proto::Welcome& welcome);
  void note_sent(const absl::Status& taken, std::string_view what);
  void fail(std::string why);

  ShardLink& link_;
  OpenContext& context_;
  const std::unique_ptr<ps::proto::JoinPath> join_path_;  ///< a pointer: no user of this header compiles protobuf
  Phase phase_ = Phase::handshake;
  Prove prove_;           ///< called once
  bool to_post_ = false;  ///< the first message of this phase has not been posted yet
  std::string why_;
  std::string described_;
  transport::Connection* connection_ = nullptr;  ///< null once lost
  transport::RemoteRegion slots_{};
  ps::SlotPlaces places_;
  bool gradients_mapped_ = false;
  bool lost_in_check_ = false;
  bool was_welcome_ = false;
  bool lower_left_ = false;
  uint32_t check_lane_ = 0;     ///< the lane that is checked
  bool shared_answer_ = false;  ///< the shard puts one pattern on all lanes: the pattern is in its GPU's memory
  uint64_t answer_seed_ = 0;    ///< seed of the pattern that the shard puts
  transport::RemoteRegion payload_{};
  bool payload_on_gpu_ = false;
  GpuVariables* gpu_ = nullptr;
  GpuTransfer way_ = GpuTransfer::staged;
  std::string device_refused_;
  /// The puts of a bucket, prepared for the gradients of its last transfer: most steps have the same.
  struct Lane {
    std::unique_ptr<transport::PreparedPuts> puts;  ///< null: not prepared
    MemorySpan gradients{};
  };
  std::vector<Lane> lanes_;              ///< indexed by bucket
  transport::RegisteredMemory headers_;  ///< [SlotHeader × buckets], at least kCheckBytes; source of the headers
  transport::RegisteredMemory returns_;  ///< [ReturnHeader × buckets], at least kCheckBytes; written by the shard
};

}  // namespace gradrail::worker
