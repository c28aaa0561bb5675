#include "tests/ps/prove/ledger.h"

#include <algorithm>
#include <functional>
#include <utility>

#include "fmt/format.h"
#include "fmt/ranges.h"

namespace gradrail::ps::prove {
namespace {

uint64_t bit_of(uint64_t step) { return uint64_t{1} << step; }

std::string words(const Action& action) {
  return fmt::format("worker {} bucket {} step {} version {}", action.worker, action.bucket, action.step,
                     action.version);
}

}  // namespace

ShardLedger::ShardLedger(const Config& config)
    : buckets(config.buckets, {.version = 0,
                               .is_initialised = config.is_initialised,
                               .workers = std::vector<Progress>(config.mode.worker_count)}),
      members(config.mode.worker_count),
      arrived(config.mode.worker_count),
      expected(config.mode.worker_count, true),
      removed(config.mode.worker_count),
      windows(config.buckets) {}

void ShardLedger::add(WorkerIndex worker, uint64_t incarnation, bool is_expected) {
  members[worker] = incarnation;
  if (arrived[worker] == incarnation) expected[worker] = is_expected;
  for (BucketLedger& bucket : buckets) {
    Progress& progress = bucket.workers[worker];
    // The gradients of a former incarnation stay in the parameters. No later push can be one of them.
    if (progress.incarnation != incarnation) progress = {.incarnation = incarnation};
    progress.arrived = 0;
    progress.joined_version = bucket.version;
  }
}

void ShardLedger::arrive(WorkerIndex worker, bool is_expected) {
  if (std::exchange(arrived[worker], members[worker]) == members[worker]) return;
  expected[worker] = is_expected;
  for (BucketLedger& bucket : buckets) bucket.workers[worker].joined_version = bucket.version;
}

void ShardLedger::remove(WorkerIndex worker) {
  members[worker] = 0;
  expected[worker] = false;
  removed[worker] = true;
}

bool ShardLedger::has_applied(WorkerIndex worker, uint64_t incarnation, uint32_t bucket, uint64_t step) const {
  const Progress& progress = buckets[bucket].workers[worker];
  return progress.incarnation == incarnation && (progress.applied & bit_of(step)) != 0;
}

std::string ShardLedger::initialise(const Action& action, const std::vector<std::optional<Push>>& slots) {
  BucketLedger& bucket = buckets[action.bucket];
  if (bucket.is_initialised) return "initialised twice: " + words(action);
  if (slots.size() != 1 || !slots[0] || slots[0]->kind != ArrivalKind::initialise)
    return "initialised without values: " + words(action);
  bucket.is_initialised = true;
  return "";
}

std::string ShardLedger::apply(const Action& action, const std::vector<std::optional<Push>>& slots,
                               const std::vector<WorkerIndex>& absent, const Mode& mode) {
  BucketLedger& bucket = buckets[action.bucket];
  if (!bucket.is_initialised) return "applied before initial values: " + words(action);
  const bool has_absent_workers_only = action.contributors.empty();
  if (has_absent_workers_only ? action.version <= bucket.version : action.version != bucket.version + 1)
    return "applied with a wrong version: " + words(action);
  if (std::string wrong = check_contributors(action, absent.size(), mode); !wrong.empty()) return wrong;
  for (const WorkerIndex worker : absent) {
    bucket.workers[worker].applied |= bit_of(action.step);
    bucket.workers[worker].staleness = 0;
  }
  uint64_t staleness = 0;
  for (size_t i = 0; i < slots.size(); ++i) {
    const WorkerIndex worker = action.contributors[i];
    Progress& progress = bucket.workers[worker];
    const std::string what = fmt::format("apply of {} by worker {}", words(action), worker);
    if (!slots[i] || slots[i]->kind != ArrivalKind::push) return "no payload: " + what;
    if (members[worker] == 0 || slots[i]->incarnation != members[worker]) return "applied for a non-member: " + what;
    if (slots[i]->step != action.step) return fmt::format("the payload is of step {}: {}", slots[i]->step, what);
    if ((progress.applied & bit_of(action.step)) != 0) return "applied twice: " + what;
    if (std::string wrong = check_order(action, progress, mode); !wrong.empty())
      return fmt::format("{}: {}", wrong, what);
    progress.applied |= bit_of(action.step);
    progress.staleness = bucket.version - std::min(bucket.version, slots[i]->base_version);
    staleness = std::max(staleness, progress.staleness);
  }
  if (action.staleness != staleness) return fmt::format("staleness {}: apply of {}", action.staleness, words(action));
  bucket.version = action.version;
  return "";
}

std::string ShardLedger::check_contributors(const Action& action, size_t absent_count, const Mode& mode) const {
  const auto& all = action.contributors;
  if (all.size() + absent_count == 0) return "applied without contributors: " + words(action);
  if (std::adjacent_find(all.begin(), all.end(), std::greater_equal<>()) != all.end())
    return fmt::format("contributors {} do not ascend", fmt::join(all, ","));
  if (!mode.sums()) return all.size() == 1 ? "" : "applied several at once: " + words(action);
  const auto is_expected = [this](WorkerIndex worker) { return expected[worker]; };
  const auto expected_count = static_cast<size_t>(std::count(expected.begin(), expected.end(), true));
  const size_t spared = mode.spared_count();
  // A worker that is not expected counts as spared.
  const size_t enough =
      all.empty() ? expected_count : std::min(expected_count, members.size() > spared ? members.size() - spared : 1);
  size_t present_count = 0;
  for (WorkerIndex worker = 0; worker < members.size(); ++worker)
    present_count += members[worker] != 0 && expected[worker] ? 1 : 0;
  if (mode.grace.any() && all.size() + absent_count < present_count && windows[action.bucket].ended != action.step)
    return "applied before the end of its window: " + words(action);
  if (all.size() + absent_count >= enough && std::all_of(all.begin(), all.end(), is_expected)) return "";
  return fmt::format("a step with the contributors {} of {} expected workers: {}", fmt::join(all, ","), expected_count,
                     words(action));
}

/// Steps are applied in order without gaps.
std::string ShardLedger::check_order(const Action& action, const Progress& progress, const Mode& mode) const {
  if (mode.sums()) return action.step == action.version ? "" : "not the next step of the bucket";
  if (progress.applied == 0) return mode.kind == ModeKind::ssp || action.step == 1 ? "" : "a gap before the first step";
  return (progress.applied & bit_of(action.step - 1)) != 0 ? "" : "a gap";
}

std::string ShardLedger::begin_window(const Action& action) {
  Window& window = windows[action.bucket];
  if (action.step != buckets[action.bucket].version + 1) return "not the window of the next step: " + words(action);
  if (window.begun == action.step) return "a second window of a step: " + words(action);
  window.begun = action.step;
  return "";
}

std::string ShardLedger::answer(const Action& action, const Mode& mode) const {
  const BucketLedger& bucket = buckets[action.bucket];
  const std::string what = fmt::format("answer to {}", words(action));
  if (members[action.worker] == 0) return "not a member: " + what;
  if (!bucket.is_initialised) return "answered before initial values: " + what;
  if (action.version != bucket.version) return "not the version of the bucket: " + what;
  if (action.step == 0) return "";  // of a pull or an initialise
  const Progress& progress = bucket.workers[action.worker];
  if (action.step != progress.arrived) return fmt::format("the latest push is of step {}: {}", progress.arrived, what);
  const bool is_applied = (progress.applied & bit_of(action.step)) != 0;
  if (is_applied == action.dropped) return fmt::format("dropped is {}: {}", action.dropped, what);
  if (is_applied && action.staleness != progress.staleness)
    return fmt::format("staleness {} was {}: {}", action.staleness, progress.staleness, what);
  if (mode.kind == ModeKind::ssp) return check_bound(action, mode);
  const bool may_be_late = mode.drops() || (mode.sums() && action.step <= progress.joined_version);
  return is_applied || may_be_late ? "" : "acknowledged and never applied: " + what;
}

/// ssp: an answer permits the next step. No expected worker that has begun may be too far behind.
std::string ShardLedger::check_bound(const Action& action, const Mode& mode) const {
  for (WorkerIndex other = 0; other < members.size(); ++other) {
    if (!expected[other]) continue;
    const std::optional<uint64_t> reached = reached_step(other, action.bucket);
    if (reached.has_value() && action.step > *reached + mode.bound)
      return fmt::format("worker {} is at step {}: answer to {}", other, *reached, words(action));
  }
  return "";
}

/// ssp: the last step of a worker. Nothing: it has joined again and begins where the slowest worker is.
std::optional<uint64_t> ShardLedger::reached_step(WorkerIndex worker, uint32_t bucket) const {
  const uint64_t applied = buckets[bucket].workers[worker].applied;
  if (applied != 0) return 63 - static_cast<uint64_t>(__builtin_clzll(applied));
  if (removed[worker] || members[worker] > 1) return std::nullopt;
  return 0;
}

std::optional<uint64_t> ShardLedger::permitted_step(uint32_t bucket, const Mode& mode) const {
  uint64_t slowest = UINT64_MAX - mode.bound;
  for (WorkerIndex worker = 0; worker < members.size(); ++worker) {
    if (!expected[worker]) continue;
    const std::optional<uint64_t> reached = reached_step(worker, bucket);
    if (!reached.has_value()) return std::nullopt;
    slowest = std::min(slowest, *reached);
  }
  return slowest + mode.bound;
}

}  // namespace gradrail::ps::prove
