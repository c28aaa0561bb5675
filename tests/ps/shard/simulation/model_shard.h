#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <vector>

#include "ps/shard/shard_protocol.h"
#include "tests/ps/shard/simulation/ledger.h"
#include "tests/ps/shard/simulation/messages.h"
#include "tests/ps/shard/simulation/plan.h"

namespace gradrail::ps::simulation {

/// An integer model of the shard around its protocol: slots that exist as long as their connection, parameters, and
/// sums. Averages would not be integers.
class ModelShard {
 public:
  struct Port {
    std::function<void(const Answer&)> answer;
    std::function<void(WorkerIndex, const Action&)> refused;
    std::function<void(uint32_t bucket, uint64_t step)> begin_window;
  };
  ModelShard(uint32_t index, const Plan& plan, Ledger& ledger, Port port);

  void join(WorkerIndex worker, uint64_t incarnation, uint64_t connection);
  void remove(WorkerIndex worker, uint64_t incarnation);
  /// The slots of `connection` go; nothing happens when it was replaced already.
  void disconnect(WorkerIndex worker, uint64_t connection);
  void reconnect(WorkerIndex worker, uint64_t incarnation, uint64_t connection);
  void arrive(const Notification& notice);
  void end_window(uint32_t bucket, uint64_t step);
  /// Shows the protocol an arrival that must lead to one refusal (a member's) or to nothing (a non-member's).
  void forge(const Arrival& arrival);

  /// A join of an incarnation that was replaced meanwhile: must change nothing.
  void join_too_late(WorkerIndex worker, uint64_t incarnation);

  uint32_t bucket_count() const { return static_cast<uint32_t>(parameters_.size()); }
  uint64_t incarnation_of(WorkerIndex worker) const;
  const ShardProtocol& protocol() const { return protocol_; }
  void check_final() const;

 private:
  struct Peer {
    uint64_t incarnation = 0;
    uint64_t connection = 0;
    std::vector<Slot> slots;
  };
  void run_actions();
  void apply(const Action& action);
  void answer(const Action& action);

  const uint32_t index_;
  Ledger& ledger_;
  Port port_;
  ShardProtocol protocol_;
  std::vector<uint64_t> parameters_;
  std::map<WorkerIndex, Peer> peers_;
  Actions actions_;
};

}  // namespace gradrail::ps::simulation
