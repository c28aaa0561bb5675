#pragma once

#include <array>
#include <vector>

#include "base/random.h"
#include "bench/predict/network/network.h"
#include "bench/predict/plan.h"

namespace gradrail::bench::predict {

/// The workers: the rules of worker::Exchange for steps and buckets, and the times of their threads.
class Workers {
 public:
  Workers(const Description& description, const Plan& plan, EventQueue& events, Network& network);

  void start();
  /// The next bucket of a worker is ready.
  void on_push(uint32_t worker, Time now);
  /// An answer has arrived. Releases the message.
  void on_answer(uint32_t message, Time now);

  uint32_t most_steps() const { return most_steps_; }
  uint32_t finished_count() const { return finished_count_; }
  /// Counting steps that each worker has made.
  uint32_t all_steps() const { return all_steps_; }
  /// Answers so far / those of all steps of all workers.
  double done_share() const;
  /// The last three steps that all workers have made have the same mean time, within 0.1 %.
  bool is_settled() const;

  struct Steps {
    std::vector<float> step_s, exchange_s;
  };
  const Steps& steps(uint32_t worker) const { return workers_[worker].steps; }

  void begin_measurement(Time now);
  double cpu_share(Time now) const;
  double compute_share(Time now) const;
  /// Sums over all steps that count, in seconds.
  std::array<double, kCauses> critical_path_s() const { return path_s_; }

 private:
  struct Bucket {
    uint64_t version = 0;
    bool is_pushed = false;
    bool is_outstanding = false;
    bool is_late = false;
    ps::ArrivalKind kind{};
  };
  struct Worker {
    uint64_t step = 0;
    uint32_t done_steps = 0;
    uint32_t next_push = 0;  ///< place in the order of the plan
    uint32_t outstanding = 0;
    uint32_t late_count = 0;
    bool was_dropped = false;
    Time begun_at = 0;
    Time compute = 0;
    Time free_at = 0;  ///< of its thread
    Steps steps{};
  };

  Bucket& bucket(uint32_t worker, uint32_t index) { return buckets_[worker * plan_.buckets.size() + index]; }
  void begin_step(uint32_t index, Time now);
  void end_step(uint32_t index, Trace trace, Time now);
  Time draw_compute();
  /// `trace` up to now.
  void push(uint32_t worker, uint32_t bucket, const Trace& trace, Time now);
  void send(uint32_t worker, uint32_t bucket, Trace trace, Time now);
  void repeat_late(uint32_t worker, const Trace& trace, Time now);
  uint64_t lowest_version(uint32_t worker) const;

  const Description& description_;
  const Plan& plan_;
  EventQueue& events_;
  Network& network_;
  Random random_;
  std::vector<Worker> workers_;
  std::vector<Bucket> buckets_;  ///< [workers, buckets of the plan]
  uint32_t most_steps_ = 0;
  uint32_t finished_count_ = 0;
  uint32_t all_steps_ = 0;
  uint64_t answers_ = 0;
  struct StepSum {
    double seconds = 0;
    uint32_t workers = 0;
  };
  std::vector<StepSum> sums_;  ///< of the steps that count

  Time measured_from_ = 0;
  Time busy_ = 0, computing_ = 0;  ///< of all workers
  std::array<double, kCauses> path_s_{};
};

}  // namespace gradrail::bench::predict
