#include "ps/shard/answer_gate.h"

#include <utility>

#include "base/check.h"

namespace gradrail::ps {
namespace {

/// The change of an answer that no acknowledgement releases.
constexpr uint64_t kNever = UINT64_MAX;

}  // namespace

bool AnswerGate::hold(const Action& answer, const BackupProgress* progress) {
  const bool is_behind = progress != nullptr && progress->is_holding() && progress->is_behind(answer.bucket);
  if (!is_behind && !is_unsure_) return false;
  GRADRAIL_CHECK(answer.bucket < held_.size());
  // No acknowledgement releases the answer of an unsure shard: the state may belong to another primary already.
  held_[answer.bucket].push_back({answer, is_behind ? progress->changes(answer.bucket) : kNever});
  return true;
}

void AnswerGate::forget(WorkerIndex worker) {
  for (std::vector<Held>& bucket : held_) {
    std::erase_if(bucket, [&](const Held& one) { return one.answer.worker == worker; });
  }
}

void AnswerGate::on_attaching(const BackupProgress* former) {
  // A level backup may have taken over already. A new connection alone does not disprove that (invariant 3).
  is_unsure_ = is_unsure_ || (former != nullptr && former->is_holding());
  was_reported_level_ = false;
}

void AnswerGate::on_acknowledged(uint32_t bucket, const BackupProgress& progress, Actions& released) {
  // An acknowledgement to an unsure shard may be that of a backup that serves workers already.
  if (is_unsure_) return;
  GRADRAIL_CHECK(bucket < held_.size());
  std::vector<Held>& held = held_[bucket];
  const uint64_t acknowledged = progress.acknowledged(bucket);
  size_t kept = 0;  // answers stay in order: those of one worker must not overtake each other
  for (Held& one : held) {
    if (one.change <= acknowledged) {
      released.push_back(std::move(one.answer));
    } else {
      if (&held[kept] != &one) held[kept] = std::move(one);
      ++kept;
    }
  }
  held.resize(kept);
}

void AnswerGate::on_message(const BackupProgress& progress, Actions& released) {
  if (progress.phase() != BackupProgress::Phase::filling && !progress.is_holding()) return;
  // The backup begins with an empty state after its Welcome: it has not taken over, and will not before it is level.
  is_unsure_ = false;
  release_all(released);
}

void AnswerGate::on_lost(Actions& released) {
  // report_level() is true in the call that announces it.
  is_unsure_ = is_unsure_ || was_reported_level_;
  if (!is_unsure_) release_all(released);
}

void AnswerGate::on_detached(Actions& released) {
  is_unsure_ = false;
  release_all(released);
}

bool AnswerGate::report_level(const BackupProgress& progress) {
  if (progress.phase() != BackupProgress::Phase::level || was_reported_level_) return false;
  was_reported_level_ = true;
  return true;
}

void AnswerGate::reset() {
  held_.clear();
  is_unsure_ = false;
}

void AnswerGate::release_all(Actions& released) {
  for (std::vector<Held>& bucket : held_) {
    for (Held& one : bucket) released.push_back(std::move(one.answer));
    bucket.clear();
  }
}

}  // namespace gradrail::ps
