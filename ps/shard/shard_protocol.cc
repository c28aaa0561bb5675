#include "ps/shard/shard_protocol.h"

#include <algorithm>
#include <cassert>
#include <string_view>
#include <utility>

#include "base/check.h"
#include "fmt/format.h"

namespace gradrail::ps {
namespace {

/// Staleness of a gradient. A base ahead of the bucket is one from before the parameters were restored: it is not
/// stale.
uint64_t staleness_of(uint64_t version, uint64_t base_version) {
  return version > base_version ? version - base_version : 0;
}

}  // namespace

ShardProtocol::ShardProtocol(Mode mode, uint32_t bucket_count, bool initialised, uint64_t initial_version)
    : mode_(mode), buckets_(bucket_count, Bucket{.version = initial_version, .initialised = initialised}) {
  GRADRAIL_CHECK(initialised || initial_version == 0);
  if (!mode_.waits()) return;
  GRADRAIL_CHECK(mode_.worker_count > 0);
  expected_.assign(mode_.worker_count, true);
  expected_count_ = mode_.worker_count;
}

void ShardProtocol::expect(WorkerIndex worker) {
  if (!mode_.waits()) return;
  if (worker >= expected_.size()) expected_.resize(worker + 1, false);
  if (expected_[worker]) return;
  expected_[worker] = true;
  ++expected_count_;
  for (Bucket& bucket : buckets_) bucket.slowest_count = 0;
}

ShardProtocol::Member& ShardProtocol::Members::add(WorkerIndex worker) {
  if (worker >= list.size()) list.resize(worker + 1);
  return list[worker];
}

uint64_t ShardProtocol::Members::done_step(WorkerIndex worker, uint32_t bucket) const {
  const Member* member = find(worker);
  return member == nullptr ? 0 : member->exchanges[bucket].done_step;
}

bool ShardProtocol::Exchange::is_due(uint64_t slowest, uint32_t bound) const {
  // min(): a worker that is not expected any more may be behind the slowest one, and the difference would wrap.
  return withheld && done_step - std::min(done_step, slowest) <= bound;
}

void ShardProtocol::add_worker(WorkerIndex worker, uint64_t incarnation) {
  Member& member = members_.add(worker);
  const bool is_new = !std::exchange(member.known, true);
  // A late join of a replaced incarnation must not displace its successor (invariant 2).
  if (std::find(member.replaced.begin(), member.replaced.end(), incarnation) != member.replaced.end()) return;
  if (is_new || member.incarnation != incarnation) {
    if (!is_new) {
      drop_all(member);
      member.replaced.push_back(member.incarnation);
    }
    member.incarnation = incarnation;
    member.arrived = false;
    member.finished = false;
    member.former = false;
    member.exchanges.assign(buckets_.size(), Exchange{});
    for (size_t bucket = 0; bucket < buckets_.size(); ++bucket) {
      buckets_[bucket].slowest_count = 0;
      // ssp: a worker that began at step 0 would hold all others until its step is theirs. It begins at the slowest step.
      if (mode_.kind == ModeKind::ssp) member.exchanges[bucket].done_step = buckets_[bucket].floor;
    }
  }
  member.live = true;
  if (member.arrived && !member.finished) expect(worker);
}

void ShardProtocol::add_former_member(WorkerIndex worker, uint64_t incarnation) {
  add_worker(worker, incarnation);
  Member* member = find(worker, incarnation);
  if (member == nullptr) return;
  member->former = true;
  begin_part(worker, *member);
}

/// Makes the worker take part: its data path works, and the steps of the others may wait for it.
void ShardProtocol::begin_part(WorkerIndex worker, Member& member) {
  if (std::exchange(member.arrived, true)) return;
  for (size_t bucket = 0; mode_.kind == ModeKind::ssp && bucket < buckets_.size(); ++bucket) {
    // The others have continued since it was added. A backup has the place that its primary has given the worker.
    Exchange& exchange = member.exchanges[bucket];
    if (exchange.fresh && !member.former) exchange.done_step = std::max(exchange.done_step, buckets_[bucket].floor);
    buckets_[bucket].slowest_count = 0;
  }
  if (!member.finished) expect(worker);
}

void ShardProtocol::remove_worker(WorkerIndex worker, uint64_t incarnation, Actions& actions) {
  Member* member = find(worker, incarnation);
  if (member == nullptr) return;
  // The call precedes stop_expecting(), which may apply a step: the payloads of this worker end with its connection.
  drop_all(*member);
  member->live = false;
  // done_step stays: the incarnation may return and repeat that push.
  for (Exchange& exchange : member->exchanges) exchange.withheld = false;
  stop_expecting(worker, actions);
}

void ShardProtocol::stop_expecting_worker(WorkerIndex worker, Actions& actions) {
  const Member* member = members_.find(worker);
  if (member == nullptr || !member->live) stop_expecting(worker, actions);
}

void ShardProtocol::mark_worker_finished(WorkerIndex worker, uint64_t incarnation, Actions& actions) {
  Member* member = find(worker, incarnation);
  if (member == nullptr || member->finished) return;
  member->finished = true;
  stop_expecting(worker, actions);
}

void ShardProtocol::stop_expecting(WorkerIndex worker, Actions& actions) {
  if (!is_expected(worker)) return;
  GRADRAIL_CHECK(expected_count_ > 0);
  expected_[worker] = false;
  --expected_count_;
  // The next step of a bucket may be complete with one worker less.
  for (uint32_t bucket = 0; bucket < buckets_.size(); ++bucket) {
    buckets_[bucket].slowest_count = 0;
    mode_.kind == ModeKind::ssp ? answer_withheld(bucket, actions) : complete_step(bucket, actions);
  }
}

void ShardProtocol::reconnect_worker(WorkerIndex worker, uint64_t incarnation) {
  Member* member = find(worker, incarnation);
  if (member == nullptr) return;
  drop_all(*member);
  // The worker repeats that push. An answer before the repetition would permit the next push of the same slot.
  for (Exchange& exchange : member->exchanges) exchange.withheld = false;
}

void ShardProtocol::on_arrival(const Arrival& arrival, Actions& actions) {
  Member* member = find(arrival.worker, arrival.incarnation);
  if (member == nullptr) return;
  if (arrival.bucket >= buckets_.size()) {
    return refuse(arrival, fmt::format("this shard has {} buckets", buckets_.size()), actions);
  }
  assert(member->exchanges.size() == buckets_.size());
  if (!member->arrived) begin_part(arrival.worker, *member);
  Exchange& exchange = member->exchanges[arrival.bucket];
  // A repeated push is legal after the end of the steps: its answer may have been lost.
  if (member->finished && arrival.kind == ArrivalKind::push && arrival.step > exchange.done_step) {
    return refuse(arrival, "the worker has finished its steps", actions);
  }
  switch (arrival.kind) {
    case ArrivalKind::push:
    case ArrivalKind::absent:
      return on_push(*member, arrival, actions);
    case ArrivalKind::pull:
      return on_pull(exchange, arrival, actions);
    case ArrivalKind::initialise:
      return on_initialise(exchange, arrival, actions);
  }
  refuse(arrival, fmt::format("unknown kind {}", static_cast<unsigned>(arrival.kind)), actions);
}

std::optional<ShardProtocol::LonePush> ShardProtocol::on_lone_push(const Arrival& push) {
  assert(push.kind == ArrivalKind::push);
  Member* member = find(push.worker, push.incarnation);
  if (member == nullptr || !member->arrived || member->finished || push.bucket >= buckets_.size()) return std::nullopt;
  Bucket& bucket = buckets_[push.bucket];
  Exchange& exchange = member->exchanges[push.bucket];
  if (!bucket.initialised || exchange.waiting || push.step <= exchange.done_step) return std::nullopt;
  if (mode_.sums()) {
    const bool is_only_one = expected_count_ == 1 && is_expected(push.worker) && bucket.waiting_count == 0;
    if (!is_only_one || mode_.grace.any() || push.step != bucket.version + 1) return std::nullopt;
  } else {
    if (mode_.kind == ModeKind::ssp || push.step != exchange.done_step + 1) return std::nullopt;
    exchange.fresh = false;
  }
  exchange.done_step = push.step;
  exchange.done_staleness = staleness_of(bucket.version, push.base_version);
  exchange.done_dropped = false;
  ++bucket.version;
  return LonePush{.version = bucket.version, .staleness = exchange.done_staleness};
}

void ShardProtocol::on_window_end(uint32_t bucket_index, uint64_t step, Actions& actions) {
  GRADRAIL_CHECK(bucket_index < buckets_.size());
  Bucket& bucket = buckets_[bucket_index];
  if (bucket.window != Window::open || step != bucket.version + 1) return;
  bucket.window = Window::ended;
  complete_step(bucket_index, actions);
}

bool ShardProtocol::initialised() const {
  return std::all_of(buckets_.begin(), buckets_.end(), [](const Bucket& bucket) { return bucket.initialised; });
}

uint64_t ShardProtocol::next_step() const {
  if (buckets_.empty()) return 1;
  uint64_t lowest = UINT64_MAX;
  for (uint32_t bucket = 0; bucket < buckets_.size(); ++bucket) lowest = std::min(lowest, next_step(bucket));
  return lowest;
}

uint64_t ShardProtocol::next_step(uint32_t bucket) const {
  GRADRAIL_CHECK(bucket < buckets_.size());
  return (mode_.kind == ModeKind::ssp ? buckets_[bucket].floor : buckets_[bucket].version) + 1;
}

bool ShardProtocol::is_member(WorkerIndex worker, uint64_t incarnation) const {
  const Member* member = members_.find(worker);
  return member != nullptr && member->live && member->incarnation == incarnation;
}

std::optional<uint64_t> ShardProtocol::done_step(WorkerIndex worker, uint64_t incarnation, uint32_t bucket) const {
  const Member* const member = members_.find(worker);
  if (member == nullptr || member->incarnation != incarnation) return std::nullopt;
  GRADRAIL_CHECK(bucket < member->exchanges.size());
  return member->exchanges[bucket].done_step;
}

std::vector<WorkerIndex> ShardProtocol::waiting_for(uint32_t bucket) const {
  std::vector<WorkerIndex> missing;
  const bool ssp = mode_.kind == ModeKind::ssp;
  const auto is_withheld = [&](const Member& member) { return member.known && member.exchanges[bucket].withheld; };
  if (ssp && std::none_of(members_.list.begin(), members_.list.end(), is_withheld)) return missing;
  const uint64_t slowest = ssp ? slowest_step(bucket) : 0;
  for (WorkerIndex worker = 0; worker < expected_.size(); ++worker) {
    if (!expected_[worker]) continue;
    const Member* member = members_.find(worker);
    const Exchange* exchange = member == nullptr ? nullptr : &member->exchanges[bucket];
    const bool is_there =
        exchange != nullptr && (ssp ? exchange->done_step > slowest : exchange->waiting && is_of_step(exchange->kind));
    if (!is_there) missing.push_back(worker);
  }
  return missing;
}

uint32_t ShardProtocol::enough() const {
  if (mode_.kind == ModeKind::sync) return expected_count_;
  // The step waits for all workers if there are fewer than K: a lost worker must not stop the run.
  return std::min(expected_count_, mode_.bound);
}

/// Expected workers that are members now. A window is not for those that have not joined.
uint32_t ShardProtocol::present_count() const {
  uint32_t count = 0;
  Members::each(members_, [&](WorkerIndex worker, const Member& member) {
    if (member.live && is_expected(worker)) ++count;
  });
  return count;
}

uint64_t ShardProtocol::slowest_step(uint32_t bucket) const {
  uint64_t slowest = UINT64_MAX;
  for (WorkerIndex worker = 0; worker < expected_.size(); ++worker) {
    if (!expected_[worker]) continue;
    slowest = std::min(slowest, members_.done_step(worker, bucket));
  }
  return slowest;
}

/// ssp: slowest_step(), with a search only when the last worker has left the step that was the slowest one.
uint64_t ShardProtocol::follow_slowest(uint32_t bucket_index) {
  Bucket& bucket = buckets_[bucket_index];
  if (bucket.slowest_count == 0) {
    bucket.slowest = slowest_step(bucket_index);
    for (WorkerIndex worker = 0; worker < expected_.size(); ++worker) {
      if (expected_[worker] && members_.done_step(worker, bucket_index) == bucket.slowest) ++bucket.slowest_count;
    }
  }
  assert(bucket.slowest == slowest_step(bucket_index));
  // The floor never decreases, because a late worker begins there. It stays without an expected worker.
  if (bucket.slowest != UINT64_MAX) bucket.floor = std::max(bucket.floor, bucket.slowest);
  return bucket.slowest;
}

ShardProtocol::Member* ShardProtocol::find(WorkerIndex worker, uint64_t incarnation) {
  if (!is_member(worker, incarnation)) return nullptr;
  return &members_.list[worker];
}

void ShardProtocol::keep_waiting(Exchange& exchange, const Arrival& arrival) {
  // Each worker has one place per bucket: it has one open request at a time, and the later one replaces it.
  drop(exchange, arrival.bucket);
  exchange.waiting = true;
  exchange.kind = arrival.kind;
  exchange.step = arrival.step;
  exchange.base_version = arrival.base_version;
  Bucket& bucket = buckets_[arrival.bucket];
  if (is_of_step(arrival.kind)) ++bucket.waiting_count;
  if (arrival.kind == ArrivalKind::push) ++bucket.push_count;
}

void ShardProtocol::drop(Exchange& exchange, uint32_t bucket) {
  if (!exchange.waiting) return;
  exchange.waiting = false;
  if (!is_of_step(exchange.kind)) return;
  GRADRAIL_CHECK(buckets_[bucket].waiting_count > 0);
  --buckets_[bucket].waiting_count;
  if (exchange.kind == ArrivalKind::push) --buckets_[bucket].push_count;
}

void ShardProtocol::drop_all(Member& member) {
  for (uint32_t bucket = 0; bucket < buckets_.size(); ++bucket) drop(member.exchanges[bucket], bucket);
}

void ShardProtocol::on_initialise(Exchange& exchange, const Arrival& arrival, Actions& actions) {
  Bucket& bucket = buckets_[arrival.bucket];
  // The first values count. A second chief repeats what the first one has sent before its loss.
  if (bucket.initialised) return answer(arrival, actions);
  // The slot now holds initial values: an earlier push of this worker has lost its payload.
  drop(exchange, arrival.bucket);
  bucket.initialised = true;
  Action& action = actions.emplace_back();
  action.kind = Action::Kind::initialise;
  action.bucket = arrival.bucket;
  action.worker = arrival.worker;
  action.step = arrival.step;
  action.version = bucket.version;
  action.contributors.push_back(arrival.worker);
  answer(arrival, actions);
  answer_waiting(arrival.bucket, actions);
}

void ShardProtocol::on_pull(Exchange& exchange, const Arrival& arrival, Actions& actions) {
  if (buckets_[arrival.bucket].initialised) return answer(arrival, actions);
  // The push stays: its answer brings the parameters as well.
  if (exchange.waiting && is_of_step(exchange.kind)) return;
  keep_waiting(exchange, arrival);
}

void ShardProtocol::on_push(Member& member, const Arrival& arrival, Actions& actions) {
  Exchange& exchange = member.exchanges[arrival.bucket];
  if (arrival.step == 0) return refuse(arrival, "steps are counted from 1", actions);
  if (arrival.kind == ArrivalKind::absent && !mode_.sums())
    return refuse(arrival, "a worker can be absent from a common step only", actions);
  // A late incarnation begins at the smallest step of all shards, which may be earlier than its place in this bucket.
  // A late incarnation of a former primary may also begin at a later step, which that primary has chosen.
  if (mode_.kind == ModeKind::ssp && exchange.fresh) {
    exchange.done_step = member.former ? arrival.step - 1 : std::min(exchange.done_step, arrival.step - 1);
    buckets_[arrival.bucket].slowest_count = 0;
  }
  // A late copy of an older step is ignored: its answer would overwrite the one for which the worker waits.
  const bool push_waits = exchange.waiting && is_of_step(exchange.kind);
  if (arrival.step < exchange.done_step || (push_waits && arrival.step <= exchange.step)) return;
  if (arrival.step == exchange.done_step) return answer_or_withhold(exchange, arrival, actions);
  mode_.sums() ? on_summed_push(exchange, arrival, actions) : on_single_push(exchange, arrival, actions);
}

void ShardProtocol::on_single_push(Exchange& exchange, const Arrival& arrival, Actions& actions) {
  const uint64_t expected = exchange.done_step + 1;
  if (arrival.step != expected) return refuse(arrival, fmt::format("expected step {}", expected), actions);
  if (!buckets_[arrival.bucket].initialised) return keep_waiting(exchange, arrival);
  apply_one(exchange, arrival, actions);
}

void ShardProtocol::on_summed_push(Exchange& exchange, const Arrival& arrival, Actions& actions) {
  const uint64_t version = buckets_[arrival.bucket].version;
  // The answer to a step permits the next one, so that no correct worker is further ahead. It may be further ahead in
  // other buckets, and absent here until this one has followed.
  if (arrival.step > version + 1 && arrival.kind == ArrivalKind::push)
    return refuse(arrival, fmt::format("expected step {}", version + 1), actions);
  if (arrival.step <= version) {  // applied without this gradient: "Joining" in the header
    exchange.done_step = arrival.step;
    exchange.done_staleness = staleness_of(version, arrival.base_version);
    exchange.done_dropped = true;
    return answer_done(exchange, arrival, actions);
  }
  keep_waiting(exchange, arrival);
  complete_step(arrival.bucket, actions);
}

void ShardProtocol::apply_one(Exchange& exchange, const Arrival& arrival, Actions& actions) {
  Bucket& bucket = buckets_[arrival.bucket];
  exchange.fresh = false;
  // async expects no worker.
  if (bucket.slowest_count > 0 && is_expected(arrival.worker) && exchange.done_step == bucket.slowest)
    --bucket.slowest_count;
  exchange.done_step = arrival.step;
  exchange.done_staleness = staleness_of(bucket.version, arrival.base_version);
  ++bucket.version;
  Action& action = actions.emplace_back();
  action.kind = Action::Kind::apply;
  action.bucket = arrival.bucket;
  action.worker = arrival.worker;
  action.step = arrival.step;
  action.version = bucket.version;
  action.staleness = exchange.done_staleness;
  action.contributors.push_back(arrival.worker);
  answer_or_withhold(exchange, arrival, actions);
}

/// Answers a push that is done, for the first time or again. ssp: withholds the answer while the worker is too far
/// ahead.
void ShardProtocol::answer_or_withhold(Exchange& exchange, const Arrival& arrival, Actions& actions) {
  if (mode_.kind != ModeKind::ssp) return answer_done(exchange, arrival, actions);
  exchange.withheld = true;
  // No other answer becomes due while the slowest step stays.
  const uint64_t slowest = follow_slowest(arrival.bucket);
  if (slowest != buckets_[arrival.bucket].answered_until) return answer_withheld(arrival.bucket, actions);
  if (!exchange.is_due(slowest, mode_.bound)) return;
  exchange.withheld = false;
  answer_done(exchange, {arrival.worker, arrival.incarnation, ArrivalKind::push, arrival.bucket, exchange.done_step},
              actions);
}

/// Applies the next step of the bucket and answers its workers, if they are enough.
void ShardProtocol::complete_step(uint32_t bucket_index, Actions& actions) {
  Bucket& bucket = buckets_[bucket_index];
  const uint32_t needed = bucket.push_count > 0 ? enough() : expected_count_;
  // enough() is 0 without an expected worker: a step without a worker would be applied.
  if (!bucket.initialised || expected_count_ == 0 || bucket.waiting_count < needed) return;
  if (!mode_.grace.any() || !stays_open(bucket_index, actions)) apply_step(bucket_index, actions);
}

/// quorum: whether the next step of the bucket, which has enough, waits for further workers. Begins its window.
bool ShardProtocol::stays_open(uint32_t bucket_index, Actions& actions) {
  Bucket& bucket = buckets_[bucket_index];
  if (bucket.window == Window::ended || bucket.waiting_count >= present_count()) return false;
  if (bucket.window == Window::open) return true;
  bucket.window = Window::open;
  Action& begin = actions.emplace_back();
  begin.kind = Action::Kind::begin_window;
  begin.bucket = bucket_index;
  begin.step = bucket.version + 1;
  return true;
}

void ShardProtocol::apply_step(uint32_t bucket_index, Actions& actions) {
  Bucket& bucket = buckets_[bucket_index];
  bucket.window = Window::none;
  // The version is taken before any answer: all answers of the step show the same version.
  const uint64_t version_before = bucket.version;
  bucket.version = bucket.push_count > 0 ? version_before + 1 : lowest_waiting_step(bucket_index);
  Action& apply = actions.emplace_back();
  apply.kind = Action::Kind::apply;
  apply.bucket = bucket_index;
  apply.step = apply.version = bucket.version;
  Members::each(members_, [&](WorkerIndex worker, const Member& member) {
    const Exchange& exchange = member.exchanges[bucket_index];
    if (!exchange.waiting || exchange.kind != ArrivalKind::push) return;
    assert(exchange.step == bucket.version);  // invariant 3; a gradient of another step would enter the sum
    apply.contributors.push_back(worker);
    apply.staleness = std::max(apply.staleness, staleness_of(version_before, exchange.base_version));
  });
  GRADRAIL_CHECK(apply.contributors.size() == bucket.push_count);
  if (!apply.contributors.empty()) apply.worker = apply.contributors.front();
  answer_step(bucket_index, version_before, actions);
}

uint64_t ShardProtocol::lowest_waiting_step(uint32_t bucket) const {
  uint64_t lowest = UINT64_MAX;
  Members::each(members_, [&](WorkerIndex, const Member& member) {
    const Exchange& exchange = member.exchanges[bucket];
    if (exchange.waiting && is_of_step(exchange.kind)) lowest = std::min(lowest, exchange.step);
  });
  return lowest;
}

/// Answers the workers that have taken part in the step that was applied last.
void ShardProtocol::answer_step(uint32_t bucket_index, uint64_t version_before, Actions& actions) {
  const uint64_t version = buckets_[bucket_index].version;
  Members::each(members_, [&](WorkerIndex worker, Member& member) {
    Exchange& exchange = member.exchanges[bucket_index];
    if (!exchange.waiting || !is_of_step(exchange.kind) || exchange.step > version) return;
    const bool is_absent = exchange.kind == ArrivalKind::absent;
    drop(exchange, bucket_index);
    exchange.done_step = exchange.step;
    exchange.done_staleness = is_absent ? 0 : staleness_of(version_before, exchange.base_version);
    exchange.done_dropped = false;
    answer_done(exchange, {worker, member.incarnation, exchange.kind, bucket_index, exchange.step}, actions);
  });
}

/// ssp: sends the withheld answers of the workers that are at most `bound` steps ahead of the slowest.
void ShardProtocol::answer_withheld(uint32_t bucket_index, Actions& actions) {
  const uint64_t slowest = follow_slowest(bucket_index);
  buckets_[bucket_index].answered_until = slowest;
  Members::each(members_, [&](WorkerIndex worker, Member& member) {
    Exchange& exchange = member.exchanges[bucket_index];
    if (!exchange.is_due(slowest, mode_.bound)) return;
    exchange.withheld = false;
    answer_done(exchange, {worker, member.incarnation, ArrivalKind::push, bucket_index, exchange.done_step}, actions);
  });
}

void ShardProtocol::answer_waiting(uint32_t bucket, Actions& actions) {
  Members::each(members_, [&](WorkerIndex worker, Member& member) {
    Exchange& exchange = member.exchanges[bucket];
    if (!exchange.waiting) return;
    const Arrival arrival{worker, member.incarnation, exchange.kind, bucket, exchange.step, exchange.base_version};
    if (exchange.kind == ArrivalKind::pull) {
      drop(exchange, bucket);
      answer(arrival, actions);
    } else if (!mode_.sums()) {
      drop(exchange, bucket);
      apply_one(exchange, arrival, actions);
    }
  });
  // Summed pushes stay until now: one step applies all of them.
  if (mode_.sums()) complete_step(bucket, actions);
}

void ShardProtocol::refuse(const Arrival& arrival, std::string_view why, Actions& actions) {
  // The connection ends, and with it the slots of the waiting pushes.
  reconnect_worker(arrival.worker, arrival.incarnation);
  Action& action = actions.emplace_back();
  action.kind = Action::Kind::refuse;
  action.bucket = arrival.bucket;
  action.worker = arrival.worker;
  action.step = arrival.step;
  action.reason = fmt::format("worker {} bucket {} step {}: {}", arrival.worker, arrival.bucket, arrival.step, why);
}

void ShardProtocol::answer_done(const Exchange& exchange, const Arrival& arrival, Actions& actions) const {
  answer(arrival, actions);
  actions.back().staleness = exchange.done_staleness;
  actions.back().dropped = exchange.done_dropped;
}

void ShardProtocol::answer(const Arrival& arrival, Actions& actions) const {
  Action& action = actions.emplace_back();
  if (mode_.kind == ModeKind::ssp && !is_of_step(arrival.kind))
    action.next_step = members_.done_step(arrival.worker, arrival.bucket) + 1;
  action.kind = Action::Kind::answer;
  action.bucket = arrival.bucket;
  action.worker = arrival.worker;
  action.step = arrival.step;
  action.version = buckets_[arrival.bucket].version;
}

}  // namespace gradrail::ps
