#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "base/clock.h"
#include "base/memory.h"
#include "ps/protocol/shard_map.h"
#include "ps/shard/environment.h"
#include "transport/completion.h"
#include "transport/negotiate.h"
#include "transport/wait_set.h"
#include "worker/client/paths/return_decoder.h"
#include "worker/client/paths/shard_link.h"
#include "worker/client/paths/shard_path.h"

namespace gradrail::aggregator {

/// The shard of a session, as its workers have described it.
struct ShardTarget {
  std::shared_ptr<const ps::ShardMap> map;
  uint32_t shard_index = 0;
  ps::ReturnFormat returns = ps::ReturnFormat::fp32;
  std::string server;   ///< for people: "parameter server 0 (10.0.0.1:2222)"
  std::string host_id;  ///< of the server
  std::vector<ps::ShardEndpoint> endpoints;
};

/// A worker of the group, with the key of its data connections.
struct GroupMember {
  uint32_t worker = 0;
  uint64_t incarnation = 0;
  uint64_t number = 0;  ///< JoinPath.number of its path to this aggregator
  std::string key;
};

/// The connection of a session to its shard, for a fixed list of members. The transports are tried in their order.
/// Memory   The parameters and the sums of the shard's range. They outlive this.
/// Threads  Owner thread of the session.
class ShardSide {
 public:
  struct Options {
    std::vector<std::string> transports;  ///< in order of preference
    transport::OpenOptions open;
    bool encrypts_data = false;
  };
  ShardSide(Options options, ShardTarget target, MemorySpan parameters, MemorySpan sums, transport::WaitSet& wait_set);
  ~ShardSide();
  /// Before the first connection.
  /// Errors  RESOURCE_EXHAUSTED: no memory for parameters in another format than fp32.
  absl::Status allocate(const MemoryBinder& place);
  ShardSide(const ShardSide&) = delete;
  ShardSide& operator=(const ShardSide&) = delete;

  /// Whether the shard accepts a connection over one of the transports. The connection ends at once. Blocks up to 1 s.
  absl::Status reach() const;
  /// Begins a connection over the next transport. The former one is closed. Blocks while it connects, up to 1 s.
  absl::Status open(const std::vector<GroupMember>& members);
  void close();
  /// Reports to the shard that a connection with other members follows. To be called before close(), while active.
  void regroup();

  bool is_open() const { return path_ != nullptr; }
  bool is_active() const { return is_open() && path_->phase() == worker::ShardPath::Phase::active; }
  bool owns(const transport::Connection* connection) const { return is_open() && connection == connection_; }
  /// A message or a put of the handshake, or the loss of the connection.
  void on_completion(const transport::Completion& completion);
  /// Continues the handshake. True: it has to be called again soon.
  bool advance();
  /// Why the connection has ended; "": it has not.
  std::string failure() const;
  /// The shard has refused the connection with a reason that another connection would not change.
  bool is_refused() const { return is_refused_; }

  /// The path, while it is active.
  worker::ShardPath& path() const { return *path_; }
  /// ReturnHeader::answer that the parameters of a bucket have; 0: none on this connection.
  uint16_t answer_of(uint32_t bucket) const { return answers_[bucket]; }
  /// Checks the parameters of an answer, and unpacks them to their place. `header`: a copy.
  /// Errors  DATA_LOSS: a checksum or a length is wrong. The text continues "the parameters of bucket …".
  absl::Status take_parameters(const ps::ReturnHeader& header, uint32_t bucket);
  std::string describe() const { return is_open() ? path_->describe() : "no connection"; }

  // News of the shard since the last call.
  std::vector<uint32_t> take_refused() { return std::exchange(refused_, {}); }
  std::vector<uint32_t> take_finished() { return std::exchange(finished_, {}); }

 private:
  const ps::ShardEndpoint& endpoint_of(const transport::Candidate& candidate) const;
  absl::StatusOr<std::unique_ptr<transport::Context>> open_transport(const ps::ShardEndpoint& endpoint) const;
  absl::StatusOr<worker::OpenContext*> open_context(const ps::ShardEndpoint& endpoint);

  const Options options_;
  const ShardTarget target_;
  const MemorySpan parameters_;
  const MemorySpan sums_;
  transport::WaitSet& wait_set_;
  transport::RegistrationBudget registered_;
  worker::ShardLink link_;
  size_t next_candidate_ = 0;
  std::unique_ptr<worker::OpenContext> context_;  ///< of path_
  std::unique_ptr<worker::ShardPath> path_;
  worker::ReturnDecoder decoder_;
  std::vector<uint16_t> answers_;                      ///< per bucket, of path_
  const transport::Connection* connection_ = nullptr;  ///< of path_; also after its loss
  TimePoint deadline_;                                 ///< of the handshake
  bool is_refused_ = false;
  std::vector<uint32_t> refused_;
  std::vector<uint32_t> finished_;
};

}  // namespace gradrail::aggregator
