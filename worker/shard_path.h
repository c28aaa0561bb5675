#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "base/clock.h"
#include "ps/control.pb.h"
#include "ps/exchange_layout.h"
#include "transport/context.h"
#include "transport/registration.h"
#include "worker/gpu_variables.h"

namespace gradrail::worker {

struct ShardLink;

/// A transport in use by a client, with the client's memory registered.
struct OpenContext {
  std::string transport;
  std::unique_ptr<transport::Context> context;
  std::unique_ptr<transport::MemoryRegion> parameters;
  std::unique_ptr<transport::MemoryRegion> gradients;
  std::unique_ptr<transport::MemoryRegion> gpu[2];  ///< by GpuDirect: the block of GPU memory; null: not reached
};

/// The part of the variables' home that a path is to use.
struct GpuOffer {
  GpuVariables* variables = nullptr;  ///< null: they are in host memory
  GpuWay way = GpuWay::staged;
  std::string ipc_key;
};

/// One data connection of a worker to a shard, from connecting to closing. Nothing here blocks but open(): the owner
/// hands in what happened and calls advance(), so that a path can be tried beside the one in use.
/// Threads  Owner thread of the client.
class ShardPath {
 public:
  enum class Phase : uint8_t {
    greeting,    ///< the shard's challenge, or our Hello, is on its way
    checking,    ///< welcome; patterns are on their way
    ready,       ///< bytes were seen to travel both ways; the shard stands by
    activating,  ///< Ready is on its way
    active,      ///< exchanges
    failed,      ///< why() says why
  };

  /// Connects and registers what belongs to this path alone. `hello` holds the member, which `key` proves it to be.
  static absl::StatusOr<std::unique_ptr<ShardPath>> open(ShardLink& link, OpenContext& context,
                                                         const std::string& address, ps::proto::Hello hello,
                                                         const std::string& key, transport::RegistrationBudget& budget,
                                                         const MemoryPlacer& place, const GpuOffer& offer,
                                                         TimePoint deadline);
  ~ShardPath();

  /// Posts what the handshake needs next. True while something waits for room: call again soon.
  bool advance();
  /// phase() must be ready.
  void activate();

  // What the transport reported for this path.
  void on_message(absl::Span<const std::byte> bytes);
  void on_check(uint64_t immediate);
  void on_lost(std::string_view cause);

  Phase phase() const { return phase_; }
  const std::string& why() const { return why_; }
  ShardLink& link() const { return link_; }
  OpenContext& context() const { return context_; }
  transport::Connection& connection() const { return *connection_; }
  std::string describe() const;         ///< for people, also after the connection has gone
  std::string connection_path() const;  ///< transport::Connection::path(), also after it has gone
  std::string shown_path() const;       ///< that, and the way out of GPU memory if it is a direct one
  std::string name() const;             ///< that, and whether memory is mapped: under which bytes are counted
  bool was_welcome() const { return was_welcome_; }
  bool slots_on_gpu() const { return payload_on_gpu_; }  ///< the shard's

  // For the exchange, once active.
  transport::RemoteRegion slots() const { return slots_; }
  /// Where the gradients of a range go.
  transport::RemoteSlice payload(ps::ElementRange range) const;
  bool gradients_mapped() const { return gradients_mapped_; }
  /// How its bytes leave and reach GPU memory; staged as well where there is none.
  GpuWay way() const { return way_; }
  bool writes_by_nic() const { return nic_region() != nullptr; }
  /// What gradients go out of: the host's memory or the GPU's.
  transport::LocalSlice gradients(ps::ElementRange range) const;
  std::string mapped_text() const;  ///< for people, behind describe(); may be empty
  const std::string& device_refused() const { return device_refused_; }
  const transport::MemoryRegion& headers_region() const { return *headers_.region; }
  ps::SlotHeader* slot_headers() const { return reinterpret_cast<ps::SlotHeader*>(headers_.memory.data()); }
  const ps::ReturnHeader* return_headers() const {
    return reinterpret_cast<const ps::ReturnHeader*>(returns_.memory.data());
  }

 private:
  ShardPath(ShardLink& link, OpenContext& context) : link_(link), context_(context) {}
  void offer(const GpuOffer& offer);
  const transport::MemoryRegion* nic_region() const;
  absl::Status write_check();
  transport::LocalSlice check_source() const;
  std::string compare_check();
  void take_welcome(const ps::proto::Welcome& welcome);
  void post(const absl::Status& posted, std::string_view what);
  void fail(std::string why);

  ShardLink& link_;
  OpenContext& context_;
  ps::proto::Hello hello_;
  Phase phase_ = Phase::greeting;
  std::string key_;
  bool to_post_ = false;  ///< what this phase begins with has not been posted yet
  std::string why_;
  std::string described_;
  transport::Connection* connection_ = nullptr;  ///< null once lost
  transport::RemoteRegion slots_{};
  bool gradients_mapped_ = false;
  bool was_welcome_ = false;
  uint64_t answer_seed_ = 0;  ///< of the pattern that the shard puts
  transport::RemoteRegion payload_{};
  bool payload_on_gpu_ = false;
  GpuVariables* gpu_ = nullptr;
  GpuWay way_ = GpuWay::staged;
  std::string device_refused_;
  transport::RegisteredMemory headers_;  ///< [SlotHeader × buckets], at least kCheckBytes; source of the headers
  transport::RegisteredMemory returns_;  ///< [ReturnHeader × buckets], at least kCheckBytes; written by the shard
};

}  // namespace gradrail::worker
