#include "bench/predict/simulation.h"

#include <algorithm>
#include <limits>
#include <numeric>

#include "base/check.h"
#include "base/status.h"
#include "bench/predict/groups.h"
#include "bench/predict/progress.h"
#include "bench/predict/shards.h"
#include "bench/predict/workers.h"

namespace gradrail::bench::predict {
namespace {

double share_of(std::vector<float>& values, double share) {
  if (values.empty()) return 0;
  std::sort(values.begin(), values.end());
  const auto at = static_cast<size_t>(share * static_cast<double>(values.size()));
  return values[std::min(at, values.size() - 1)];
}

class Simulation {
 public:
  Simulation(const Description& description, const Plan& plan)
      : description_(description),
        plan_(plan),
        network_(description.cluster, description.workers_each, events_),
        shards_(description, plan, events_, network_),
        workers_(description, plan, events_, network_) {}

  Outcome run() {
    workers_.start();
    bool is_measuring = false;
    Progress progress;
    while (!is_over()) {
      // Each worker waits for an answer, and each push is answered: without an event the model has a mistake.
      GRADRAIL_CHECK(!events_.empty());
      const Event event = events_.take();
      now_ = event.at;
      handle(event);
      if (progress.is_due()) progress.show(workers_.done_share());
      if (!is_measuring && workers_.most_steps() >= kWarmup) {
        is_measuring = true;
        measured_from_ = now_;
        network_.begin_measurement(now_);
        shards_.begin_measurement(now_);
        workers_.begin_measurement(now_);
      }
    }
    return outcome();
  }

 private:
  /// Whether the measurement has ended. The steps of all workers count in sync; elsewhere the run ends with its first
  /// worker, because the rest of it would have fewer workers.
  bool is_over() {
    // Equal workers repeat their step.
    if (description_.workers_each > 1 && workers_.all_steps() != checked_steps_) {
      checked_steps_ = workers_.all_steps();
      if (workers_.is_settled()) return true;
    }
    const uint32_t needed = description_.load.mode.kind == ModeKind::sync ? description_.cluster.workers : 1;
    return workers_.finished_count() >= needed;
  }

  void handle(const Event& event) {
    switch (event.kind) {
      case Event::Kind::link:
        return network_.on_link(event.object, event.at);
      case Event::Kind::departure:
        return network_.depart(event.object, event.at);
      case Event::Kind::arrival:
        return arrive(event.object, event.at);
      case Event::Kind::push:
        return workers_.on_push(event.object, event.at);
      case Event::Kind::window:
        return shards_.on_window(event.object, event.at);
    }
  }

  void arrive(uint32_t index, Time now) {
    const Message& message = network_.message(index);
    if (message.is_answer)
      workers_.on_answer(index, now);
    else
      shards_.on_arrival(index, now);
  }

  Outcome outcome() {
    Outcome o;
    std::vector<float> medians, exchange_medians;
    double sum = 0, count = 0;
    o.step_s_min = std::numeric_limits<double>::infinity();
    for (uint32_t i = 0; i < description_.cluster.workers; ++i) {
      Workers::Steps steps = workers_.steps(i);
      if (steps.step_s.empty()) continue;  // a slow worker may have made no step that was measured
      sum += std::accumulate(steps.step_s.begin(), steps.step_s.end(), 0.0);
      count += static_cast<double>(steps.step_s.size());
      medians.push_back(static_cast<float>(share_of(steps.step_s, 0.5)));
      o.step_s_min = std::min<double>(o.step_s_min, steps.step_s.front());
      o.step_s_max = std::max<double>(o.step_s_max, steps.step_s.back());
      o.step_s_p99 = std::max(o.step_s_p99, share_of(steps.step_s, 0.99));
      exchange_medians.push_back(static_cast<float>(share_of(steps.exchange_s, 0.5)));
      o.exchange_s_p99 = std::max(o.exchange_s_p99, share_of(steps.exchange_s, 0.99));
    }
    o.step_s_median = share_of(medians, 0.5);
    o.exchange_s_median = share_of(exchange_medians, 0.5);
    o.step_s_mean = sum / count;
    o.steps_per_s = o.step_s_mean > 0 ? 1 / o.step_s_mean : 0;
    const double seconds = (now_ - measured_from_) * 1e-9;
    o.updates_per_s = shards_.updates() / static_cast<double>(plan_.buckets.size()) / seconds;
    o.dropped_share = shards_.dropped_share();
    const Use use = network_.use(now_);
    o.worker_nic = use.worker_nic;
    o.shard_nic = use.shard_nic;
    // Work that has begun counts whole, also if it ends after the last step.
    const auto at_most_all = [](double share) { return std::min(1.0, share); };
    o.shard_cpu = at_most_all(shards_.cpu_share(now_));
    o.shard_memory = at_most_all(shards_.memory_share(now_));
    o.worker_cpu = at_most_all(workers_.cpu_share(now_));
    o.compute = at_most_all(workers_.compute_share(now_));
    o.critical_path = workers_.critical_path_s();
    const double path_s = std::accumulate(o.critical_path.begin(), o.critical_path.end(), 0.0);
    for (double& part : o.critical_path) part = path_s > 0 ? part / path_s : 0.0;
    const auto largest = std::max_element(o.critical_path.begin(), o.critical_path.end());
    o.bottleneck = cause_names(o)[static_cast<size_t>(largest - o.critical_path.begin())];
    o.buckets = plan_.buckets.size();
    o.simulated_workers = description_.cluster.workers;
    o.events = events_.inserted();
    return o;
  }

  const Description& description_;
  const Plan& plan_;
  uint32_t checked_steps_ = 0;
  EventQueue events_;
  Network network_;
  Shards shards_;
  Workers workers_;
  Time now_ = 0;
  Time measured_from_ = 0;
};

}  // namespace

std::array<const char*, kCauses> cause_names(const Outcome& o) {
  return {"compute",    "stragglers", "worker CPU",
          "worker NIC", "shard NIC",  o.shard_memory > o.shard_cpu ? "shard memory" : "shard CPU",
          "latency"};
}

absl::StatusOr<Outcome> simulate(const Description& description) {
  GRADRAIL_RETURN_IF_ERROR(validate(description));
  GRADRAIL_ASSIGN_OR_RETURN(const Plan plan, plan_of(description));
  const Description groups = with_groups(description);
  Outcome outcome = Simulation(groups, plan).run();
  outcome.bytes_into_shard = plan.bytes_into_shard(description.cluster);
  return outcome;
}

}  // namespace gradrail::bench::predict
