#include "tests/ps/shard/simulation/ledger.h"

#include <algorithm>
#include <utility>

#include "base/random.h"
#include "fmt/format.h"
#include "fmt/ranges.h"

namespace gradrail::ps::simulation {
namespace {

std::string words(const Piece& piece, uint64_t step) {
  return fmt::format("worker {} incarnation {:x} step {} shard {} bucket {}", piece.worker, piece.incarnation, step,
                     piece.shard, piece.bucket);
}

}  // namespace

uint64_t gradient_of(const Piece& piece, uint64_t step) {
  const uint64_t place = (uint64_t{piece.shard} << 40) ^ (uint64_t{piece.bucket} << 20) ^ piece.worker;
  return Random(piece.incarnation ^ (step * 0x9e3779b97f4a7c15), place).next();
}

Ledger::Ledger(const Plan& plan) : plan_(plan), shards_(plan.bucket_counts.size()) {
  for (uint32_t shard = 0; shard < shards_.size(); ++shard) {
    shards_[shard].departed.assign(plan.worker_count, false);
    shards_[shard].buckets.assign(plan.bucket_counts[shard], {plan.initialised, plan.initial_version, {0}});
  }
}

void Ledger::fail(std::string what) {
  if (failure_.empty()) failure_ = std::move(what);
}

void Ledger::on_joined(WorkerIndex worker, uint64_t incarnation, uint32_t shard) {
  shards_[shard].members[worker] = incarnation;
  if (arrived_.contains({worker, incarnation, shard})) shards_[shard].departed[worker] = false;
  for (uint32_t bucket = 0; bucket < shards_[shard].buckets.size(); ++bucket) {
    progress_[{worker, incarnation, shard, bucket}].joined_version = at(shard, bucket).version();
  }
}

void Ledger::on_arrived(WorkerIndex worker, uint64_t incarnation, uint32_t shard) {
  if (!is_member(worker, incarnation, shard) || !arrived_.insert({worker, incarnation, shard}).second) return;
  shards_[shard].departed[worker] = false;
  for (uint32_t bucket = 0; bucket < shards_[shard].buckets.size(); ++bucket)
    progress_[{worker, incarnation, shard, bucket}].joined_version = at(shard, bucket).version();
}

void Ledger::on_removed(WorkerIndex worker, uint64_t incarnation, uint32_t shard) {
  if (!is_member(worker, incarnation, shard)) return;
  shards_[shard].members.erase(worker);
  shards_[shard].departed[worker] = true;
}

void Ledger::on_push_arrived(const Piece& piece, uint64_t step) {
  if (!is_member(piece.worker, piece.incarnation, piece.shard)) return;
  uint64_t& arrived = progress_[piece].arrived_step;
  arrived = std::max(arrived, step);
}

void Ledger::on_initialise(const Action& action, uint32_t shard, uint64_t value) {
  Bucket& bucket = at(shard, action.bucket);
  if (bucket.initialised) return fail(fmt::format("shard {} bucket {} initialised twice", shard, action.bucket));
  if (action.contributors.size() != 1 || action.contributors[0] != 0)
    return fail("initialised by another than worker 0");
  bucket.initialised = true;
  bucket.values = {value};
  initial_values_[{shard, action.bucket}] = value;
}

void Ledger::on_apply(const Action& action, uint32_t shard, const std::vector<Slot>& slots,
                      const std::vector<Piece>& absent) {
  Bucket& bucket = at(shard, action.bucket);
  const std::string where = fmt::format("apply to shard {} bucket {} version {}", shard, action.bucket, action.version);
  if (!bucket.initialised) return fail(where + ": not initialised");
  if (slots.empty() ? action.version <= bucket.version() : action.version != bucket.version() + 1)
    return fail(fmt::format("{}: was {}", where, bucket.version()));
  if (slots.empty() && absent.empty()) return fail(where + ": no contributors");
  if (std::adjacent_find(action.contributors.begin(), action.contributors.end(), std::greater_equal<>()) !=
      action.contributors.end()) {
    return fail(fmt::format("{}: contributors {} do not ascend", where, fmt::join(action.contributors, ",")));
  }
  if (plan_.mode.sums()) check_expected_set(action, shards_[shard], absent.size());
  if (plan_.mode.grace.any()) check_window(action, shards_[shard], absent.size());
  if (!plan_.mode.sums() && slots.size() != 1) return fail(where + ": takes one at a time");
  for (const Piece& piece : absent) {
    absent_.insert({piece, action.step});
    progress_[piece].staleness = 0;
  }
  uint64_t value = bucket.values.back();
  for (size_t i = 0; i < slots.size(); ++i) {
    const Piece piece{action.contributors[i], slots[i].incarnation, shard, action.bucket};
    check_contributor(action, piece, slots[i], bucket.version());
    value += gradient_of(piece, slots[i].step);
  }
  while (bucket.version() < action.version) bucket.values.push_back(value);
}

void Ledger::check_expected_set(const Action& action, const Shard& shard, size_t absent_count) {
  std::vector<WorkerIndex> expected;
  for (WorkerIndex worker = 0; worker < shard.departed.size(); ++worker) {
    if (!shard.departed[worker]) expected.push_back(worker);
  }
  const bool are_expected =
      std::includes(expected.begin(), expected.end(), action.contributors.begin(), action.contributors.end());
  const size_t all = plan_.worker_count;
  const size_t spared = plan_.mode.spared_count();
  // Lost workers count as spared. One contributor is always required.
  const bool has_absent_workers_only = action.contributors.empty();
  const size_t enough =
      has_absent_workers_only ? expected.size() : std::min(expected.size(), all > spared ? all - spared : 1);
  if (are_expected && action.contributors.size() + absent_count >= enough) return;
  fail(fmt::format("step {} bucket {}: contributors {}, expected {}", action.step, action.bucket,
                   fmt::join(action.contributors, ","), fmt::join(expected, ",")));
}

void Ledger::check_window(const Action& action, const Shard& shard, size_t absent_count) {
  const auto present = static_cast<size_t>(std::count_if(
      shard.members.begin(), shard.members.end(), [&](const auto& member) { return !shard.departed[member.first]; }));
  if (action.contributors.size() + absent_count >= present) return;
  ++steps_by_window_;
  if (shard.buckets[action.bucket].ended_window != action.step)
    fail(fmt::format("step {} bucket {}: applied before the end of its window", action.step, action.bucket));
}

void Ledger::on_window(const Action& action, uint32_t shard) {
  Bucket& bucket = at(shard, action.bucket);
  const std::string what = fmt::format("window of shard {} bucket {} step {}", shard, action.bucket, action.step);
  if (!plan_.mode.grace.any()) return fail(what + ": in a mode without");
  if (action.step != bucket.version() + 1) return fail(fmt::format("{}: version {}", what, bucket.version()));
  if (action.step == bucket.window) return fail(what + ": the second one");
  bucket.window = action.step;
}

void Ledger::on_window_end(uint32_t shard, uint32_t bucket, uint64_t step) {
  if (step == at(shard, bucket).version() + 1) at(shard, bucket).ended_window = step;
}

void Ledger::check_contributor(const Action& action, const Piece& piece, const Slot& slot, uint64_t version_before) {
  const std::string update = words(piece, slot.step);
  if (!slot.written) return fail(fmt::format("{}: applied without a payload", words(piece, action.step)));
  if (!is_member(piece.worker, piece.incarnation, piece.shard)) return fail(update + ": applied, but not a member");
  if (slot.step != action.step) return fail(fmt::format("{}: slot taken for step {}", update, action.step));
  if (slot.payload != gradient_of(piece, slot.step)) return fail(update + ": slot holds another gradient");
  if (!applied_.insert({piece, slot.step}).second) return fail(update + ": applied twice");
  Progress& progress = progress_[piece];
  const bool sync = plan_.mode.kind == ModeKind::sync;
  // One that comes late to ssp begins where the slowest is.
  const bool begins = plan_.mode.kind == ModeKind::ssp && progress.applied_step == 0;
  const uint64_t expected_step = plan_.mode.sums() ? version_before + 1 : progress.applied_step + 1;
  if (slot.step != expected_step && !begins) fail(fmt::format("{}: applied, expected step {}", update, expected_step));
  // Without a break a member applies every step; only one that was away may have missed some.
  if (sync && slot.step > progress.joined_version + 1 && progress.applied_step + 1 != slot.step) {
    fail(fmt::format("{}: applied after step {}", update, progress.applied_step));
  }
  progress.applied_step = slot.step;
  progress.staleness = version_before > slot.base_version ? version_before - slot.base_version : 0;
}

void Ledger::on_answer(const Action& action, uint32_t shard) {
  const auto member = shards_[shard].members.find(action.worker);
  const std::string what = fmt::format("answer to worker {} shard {} bucket {} step {} version {}", action.worker,
                                       shard, action.bucket, action.step, action.version);
  if (member == shards_[shard].members.end()) return fail(what + ": not a member");
  if (!at(shard, action.bucket).initialised) return fail(what + ": not initialised");
  if (action.version != at(shard, action.bucket).version()) return fail(what + ": not the bucket's version");
  const Piece piece{action.worker, member->second, shard, action.bucket};
  Progress& progress = progress_[piece];
  if (action.version < progress.version_answered) return fail(what + ": version went back");
  progress.version_answered = action.version;
  if (action.step == 0) return;  // of a pull or an initialise
  if (action.step != progress.arrived_step) {
    return fail(fmt::format("{}: the latest that arrived is {}", what, progress.arrived_step));
  }
  const bool applied = applied_.contains({piece, action.step}) || absent_.contains({piece, action.step});
  if (action.dropped == applied) return fail(fmt::format("{}: dropped is {}", what, action.dropped));
  if (plan_.mode.kind == ModeKind::ssp) check_ahead(action, shard);
  if (applied) {
    if (action.staleness != progress.staleness) fail(fmt::format("{}: staleness {}", what, action.staleness));
    return;
  }
  ++answered_unapplied_;
  if (!plan_.mode.sums() || (!plan_.mode.drops() && action.step > progress.joined_version))
    fail(what + ": was never applied");
}

/// An answer permits the next step. No worker that has begun, or was a member from the start, may be too far behind.
void Ledger::check_ahead(const Action& action, uint32_t shard) {
  for (WorkerIndex other = 0; other < plan_.worker_count; ++other) {
    if (shards_[shard].departed[other]) continue;
    const auto member = shards_[shard].members.find(other);
    uint64_t reached = 0;
    if (member != shards_[shard].members.end()) {
      reached = progress_[{other, member->second, shard, action.bucket}].applied_step;
      if (reached == 0) continue;  // its place to begin is the protocol's to choose
    }
    if (action.step <= reached + plan_.mode.bound) continue;
    fail(fmt::format("worker {} was answered step {} of shard {} bucket {} with worker {} at {}", action.worker,
                     action.step, shard, action.bucket, other, reached));
  }
}

void Ledger::on_answered(const Piece& piece, uint64_t version, uint64_t parameters) {
  Progress& progress = progress_[piece];
  const Bucket& bucket = at(piece.shard, piece.bucket);
  if (version < progress.version_seen) fail(words(piece, 0) + ": sees versions go back");
  progress.version_seen = version;
  if (version < bucket.first_version || version > bucket.version()) return fail(words(piece, 0) + ": unknown version");
  if (parameters != bucket.values[version - bucket.first_version]) {
    fail(fmt::format("{}: parameters are not those of version {}", words(piece, 0), version));
  }
}

void Ledger::on_done(WorkerIndex worker, uint64_t incarnation) {
  for (uint32_t shard = 0; shard < shards_.size(); ++shard) {
    for (uint32_t bucket = 0; bucket < shards_[shard].buckets.size(); ++bucket) {
      const Piece piece{worker, incarnation, shard, bucket};
      const Progress& progress = progress_[piece];
      if (plan_.mode.drops()) continue;  // all its last gradients may be late
      // A worker that joined at the last version, or at the last step of the slowest worker, has no step left. One
      // that begins without a pull may still make a step.
      const bool was_late = plan_.mode.sums()
                                ? progress.joined_version >= plan_.last_step()
                                : plan_.mode.kind == ModeKind::ssp &&
                                      (progress.applied_step == 0 || progress.applied_step > plan_.last_step());
      if (!was_late && progress.applied_step != plan_.last_step()) {
        fail(fmt::format("{}: is done, but applied up to step {}", words(piece, plan_.last_step()),
                         progress.applied_step));
      }
    }
  }
}

void Ledger::check_final(uint32_t shard, uint32_t bucket, uint64_t version, uint64_t parameters) {
  uint64_t expected = plan_.initialised ? 0 : initial_values_[{shard, bucket}];
  uint64_t update_count = 0;
  for (const auto& [piece, step] : applied_) {
    if (piece.shard != shard || piece.bucket != bucket) continue;
    expected += gradient_of(piece, step);
    ++update_count;
  }
  if (parameters != expected) fail(fmt::format("shard {} bucket {}: not the sum of what was applied", shard, bucket));
  if (!plan_.mode.sums() && version != plan_.initial_version + update_count) {
    fail(fmt::format("shard {} bucket {}: version {} after {} updates", shard, bucket, version, update_count));
  }
}

bool Ledger::is_member(WorkerIndex worker, uint64_t incarnation, uint32_t shard) const {
  const auto member = shards_[shard].members.find(worker);
  return member != shards_[shard].members.end() && member->second == incarnation;
}

bool Ledger::initialised() const {
  return std::all_of(shards_.begin(), shards_.end(), [](const Shard& shard) {
    return std::all_of(shard.buckets.begin(), shard.buckets.end(), [](const Bucket& b) { return b.initialised; });
  });
}

}  // namespace gradrail::ps::simulation
