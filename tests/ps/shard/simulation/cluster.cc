#include "tests/ps/shard/simulation/cluster.h"

#include <algorithm>

namespace gradrail::ps::simulation {
namespace {

/// A run of the largest plan takes some ten thousand events; ten times that is a livelock.
constexpr uint64_t kEventLimit = 400'000;

}  // namespace

void Coverage::operator+=(const Coverage& other) {
  events += other.events;
  lost_messages += other.lost_messages;
  copies += other.copies;
  reconnects += other.reconnects;
  restarts += other.restarts;
  departures += other.departures;
  rejoins += other.rejoins;
  refusals += other.refusals;
  ghosts += other.ghosts;
  stale_arrivals += other.stale_arrivals;
  answered_unapplied += other.answered_unapplied;
  steps_by_window += other.steps_by_window;
}

Cluster::Cluster(const Plan& plan, bool traced)
    : plan_(plan), trace_(traced), random_(plan.seed), ledger_(plan_), past_incarnations_(plan.worker_count) {
  for (uint32_t shard = 0; shard < plan_.bucket_counts.size(); ++shard) {
    shards_.emplace_back(
        shard, plan_, ledger_,
        ModelShard::Port{[this](const Answer& message) { answer(message); },
                         [this, shard](WorkerIndex worker, const Action& action) {
                           trace("refused: {}", action.reason);
                           ++coverage_.refusals;
                           lose(worker, shard);
                         },
                         [this, shard](uint32_t bucket, uint64_t step) {
                           queue_.post_in(random_.below(plan_.window_max), [this, shard, bucket, step] {
                             trace("shard {} bucket {}: the window of step {} ends", shard, bucket, step);
                             shards_[shard].end_window(bucket, step);
                           });
                         }});
  }
  for (WorkerIndex worker = 0; worker < plan_.worker_count; ++worker) {
    workers_.emplace_back(
        worker, plan_, random_,
        ModelWorker::Port{
            [this](uint32_t shard, const Arrival& arrival, uint64_t payload) { send(shard, arrival, payload); },
            [this](const Answer& message) {
              ledger_.on_answered({message.worker, message.incarnation, message.shard, message.bucket}, message.version,
                                  message.parameters);
            },
            [this, worker] {
              trace("worker {} is done", worker);
              ledger_.on_done(worker, workers_[worker].incarnation());
              leave(worker, plan_.delay_max);
            }});
  }
  links_.resize(plan_.worker_count * shards_.size());
  for (WorkerIndex worker = 0; worker < plan_.worker_count; ++worker) {
    for (uint32_t shard = 0; shard < shard_count(); ++shard) {
      for (auto& last_arrival : link(worker, shard).last_arrival) last_arrival.assign(plan_.bucket_counts[shard], 0);
    }
  }
  joins_missing_.assign(plan_.worker_count, 0);
}

std::string Cluster::run() {
  trace("{}", describe(plan_));
  for (WorkerIndex worker = 0; worker < plan_.worker_count; ++worker) {
    queue_.post_in(random_.below(5 * plan_.delay_max), [this, worker] { join(worker); });
  }
  schedule_faults();
  while (!ledger_.failed() && queue_.events_run() < kEventLimit && queue_.run_one()) {
  }
  coverage_.events = queue_.events_run();
  coverage_.answered_unapplied = ledger_.answered_unapplied();
  coverage_.steps_by_window = ledger_.steps_by_window();
  return verdict();
}

std::string Cluster::verdict() {
  if (!ledger_.failed() && queue_.events_run() >= kEventLimit) ledger_.fail("livelock: too many events");
  for (WorkerIndex worker = 0; worker < plan_.worker_count && !ledger_.failed(); ++worker) {
    const ModelWorker& hung = workers_[worker];
    if (hung.phase() == ModelWorker::Phase::gone) continue;
    ledger_.fail(fmt::format("worker {} hangs at step {}; shard 0 bucket 0 waits for {} workers", worker, hung.step(),
                             shards_[0].protocol().waiting_for(0).size()));
  }
  for (const ModelShard& shard : shards_) {
    if (!ledger_.failed()) shard.check_final();
  }
  if (!ledger_.failed()) return "";
  return fmt::format("[{}] {}\n  {}", queue_.now(), ledger_.failure(), describe(plan_));
}

void Cluster::join(WorkerIndex worker) {
  const uint64_t incarnation = new_incarnation();
  workers_[worker].boot(incarnation);
  joins_missing_[worker] = shard_count();
  trace("worker {} boots as {:x}", worker, incarnation);
  for (uint32_t shard = 0; shard < shard_count(); ++shard) {
    queue_.post_in(delay(), [this, worker, shard, incarnation] {
      shards_[shard].join(worker, incarnation, connect(worker, shard));
      trace("worker {} {:x} joins shard {}", worker, incarnation, shard);
      if (--joins_missing_[worker] == 0) queue_.post_in(delay(), [=, this] { on_joined(worker, incarnation); });
    });
  }
}

void Cluster::on_joined(WorkerIndex worker, uint64_t incarnation) {
  if (workers_[worker].incarnation() != incarnation) return;
  uint64_t first_step = 1;
  if (plan_.mode.waits()) {
    const auto by_next_step = [](const ModelShard& a, const ModelShard& b) {
      return a.protocol().next_step() < b.protocol().next_step();
    };
    first_step = std::min_element(shards_.begin(), shards_.end(), by_next_step)->protocol().next_step();
  }
  trace("worker {} starts at step {}", worker, first_step);
  workers_[worker].start(first_step);
}

void Cluster::leave(WorkerIndex worker, uint64_t timeout) {
  workers_[worker].stop();
  ++coverage_.departures;
  const uint64_t incarnation = workers_[worker].incarnation();
  for (uint32_t shard = 0; shard < shard_count(); ++shard) {
    queue_.post_in(1 + random_.below(timeout), [this, worker, shard, incarnation] {
      trace("worker {} {:x} leaves shard {}", worker, incarnation, shard);
      shards_[shard].remove(worker, incarnation);
    });
  }
}

}  // namespace gradrail::ps::simulation
