#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "base/random.h"
#include "ps/shard/shard_protocol.h"
#include "tests/ps/shard/simulation/messages.h"
#include "tests/ps/shard/simulation/plan.h"

namespace gradrail::ps::simulation {

/// The exchange of a worker. It opens (the chief initializes, others pull). Then each step pushes all buckets of all
/// shards in any order and waits for all answers. The model has no clock: lost messages are repeated when the
/// connection is back.
class ModelWorker {
 public:
  enum class Phase : uint8_t { joining, opening, exchanging, gone };
  struct Port {
    std::function<void(uint32_t shard, const Arrival&, uint64_t payload)> send;
    std::function<void(const Answer&)> accepted;
    std::function<void()> done;
  };
  ModelWorker(WorkerIndex index, const Plan& plan, Random& random, Port port);

  /// Starts a new process without state.
  void boot(uint64_t incarnation);
  void start(uint64_t first_step);
  void repeat_unanswered(uint32_t shard);
  void on_answer(const Answer& answer);
  void stop() { phase_ = Phase::gone; }

  Phase phase() const { return phase_; }
  bool running() const { return phase_ == Phase::opening || phase_ == Phase::exchanging; }
  uint64_t incarnation() const { return incarnation_; }
  uint64_t step() const { return step_; }

 private:
  struct Bucket {
    uint32_t shard = 0;
    uint32_t bucket = 0;
    bool answered = false;
    bool is_late = false;    ///< quorum: its gradient has not been applied
    ArrivalKind kind{};      ///< in this step
    uint64_t version = 0;    ///< of the parameters at hand
    uint64_t next_step = 0;  ///< ssp: named by the answer to a pull
  };
  void begin(Phase phase, uint64_t step);
  void send(const Bucket& bucket) const;
  void send_all();
  void on_all_answered();
  void shuffle();

  const WorkerIndex index_;
  const Plan& plan_;
  Random& random_;
  Port port_;
  Phase phase_ = Phase::gone;
  uint64_t incarnation_ = 0;
  uint64_t first_step_ = 1;
  uint64_t step_ = 0;
  uint32_t unanswered_count_ = 0;
  std::vector<Bucket> buckets_;
};

}  // namespace gradrail::ps::simulation
