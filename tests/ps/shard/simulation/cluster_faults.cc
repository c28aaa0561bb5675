#include <utility>

#include "tests/ps/shard/simulation/cluster.h"

namespace gradrail::ps::simulation {
namespace {

constexpr uint64_t kDetectionDelays = 8;  // longer than any message delay: detection is slow

}  // namespace

void Cluster::schedule_faults() {
  schedule(plan_.link_losses,
           [this](WorkerIndex worker) { lose(worker, static_cast<uint32_t>(random_.below(shard_count()))); });
  schedule(plan_.restarts, [this](WorkerIndex worker) { restart(worker); });
  schedule(plan_.kills, [this](WorkerIndex worker) { kill(worker); });
  schedule(plan_.early_leaves, [this](WorkerIndex worker) {
    if (may_go(worker)) leave(worker, plan_.delay_max);
  });
  schedule(plan_.false_removals, [this](WorkerIndex worker) { falsely_remove(worker); });
  schedule(plan_.forgeries, [this](WorkerIndex worker) { forge(worker); });
  schedule(plan_.ghosts, [this](WorkerIndex worker) { haunt(worker); });
}

void Cluster::schedule(uint32_t count, const std::function<void(WorkerIndex)>& fault) {
  for (uint32_t i = 0; i < count; ++i) {
    queue_.post_at(random_.below(plan_.fault_horizon), [this, fault] {
      const auto worker = static_cast<WorkerIndex>(random_.below(plan_.worker_count));
      if (workers_[worker].running()) fault(worker);
    });
  }
}

/// The chief stays until the parameters are initialized: no worker can continue before that.
bool Cluster::may_go(WorkerIndex worker) const { return worker != 0 || ledger_.initialised(); }

void Cluster::restart(WorkerIndex worker) {
  ++coverage_.restarts;
  past_incarnations_[worker].push_back(workers_[worker].incarnation());
  trace("worker {} exits and restarts", worker);
  join(worker);
}

void Cluster::kill(WorkerIndex worker) {
  if (!may_go(worker)) return;
  trace("worker {} is killed", worker);
  past_incarnations_[worker].push_back(workers_[worker].incarnation());
  leave(worker, kDetectionDelays * plan_.delay_max);
  if (random_.below(2) == 0) return;
  ++coverage_.rejoins;  // its scheduler starts another, perhaps before all shards have noticed
  queue_.post_in(random_.below(2 * kDetectionDelays) * delay(), [this, worker] { join(worker); });
}

void Cluster::falsely_remove(WorkerIndex worker) {
  const uint64_t incarnation = workers_[worker].incarnation();
  for (uint32_t shard = 0; shard < shard_count(); ++shard) {
    const uint64_t removed_in = delay();
    queue_.post_in(removed_in, [=, this] {
      if (shards_[shard].incarnation_of(worker) != incarnation) return;
      trace("worker {} is wrongly declared lost at shard {}", worker, shard);
      link(worker, shard).up = false;
      shards_[shard].remove(worker, incarnation);
    });
    queue_.post_in(removed_in + delay() * 3, [=, this] { rejoin(worker, shard, incarnation); });
  }
}

void Cluster::rejoin(WorkerIndex worker, uint32_t shard, uint64_t incarnation) {
  if (workers_[worker].incarnation() != incarnation || !workers_[worker].running()) return;
  if (ledger_.is_member(worker, incarnation, shard)) return;
  ++coverage_.rejoins;
  trace("worker {} returns to shard {}", worker, shard);
  shards_[shard].join(worker, incarnation, connect(worker, shard));
  workers_[worker].repeat_unanswered(shard);
}

void Cluster::forge(WorkerIndex worker) {
  const auto shard = static_cast<uint32_t>(random_.below(shard_count()));
  const ModelWorker& victim = workers_[worker];
  if (!link(worker, shard).up || !ledger_.is_member(worker, victim.incarnation(), shard)) return;
  const auto bucket = static_cast<uint32_t>(random_.below(shards_[shard].bucket_count()));
  // The step of an async worker is 0 before its first exchange. An ssp worker may begin at the slowest step, so that
  // only a step beyond the end is too far.
  const bool ssp = plan_.mode.kind == ModeKind::ssp;
  const uint64_t reached = plan_.mode.sums() ? shards_[shard].protocol().version(bucket)
                           : ssp             ? plan_.last_step()
                                             : victim.step();
  const uint64_t step = reached + 2 + random_.below(3);
  trace("forged: worker {} shard {} bucket {} step {}", worker, shard, bucket, step);
  shards_[shard].forge({worker, victim.incarnation(), ArrivalKind::push, bucket, step, reached});
}

void Cluster::haunt(WorkerIndex worker) {
  const auto shard = static_cast<uint32_t>(random_.below(shard_count()));
  const auto bucket = static_cast<uint32_t>(random_.below(shards_[shard].bucket_count()));
  if (past_incarnations_[worker].empty()) return;
  const uint64_t ghost = past_incarnations_[worker][random_.below(past_incarnations_[worker].size())];
  if (shards_[shard].incarnation_of(worker) == ghost) return;
  ++coverage_.ghosts;
  if (random_.below(2) == 0) shards_[shard].join_too_late(worker, ghost);
  const uint64_t step = 1 + workers_[worker].step();
  trace("ghost: worker {} {:x} shard {} bucket {} step {}", worker, ghost, shard, bucket, step);
  shards_[shard].forge({worker, ghost, ArrivalKind::push, bucket, step, step});
}

}  // namespace gradrail::ps::simulation
