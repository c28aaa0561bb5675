#include "tests/ps/shard/simulation/model_worker.h"

#include <algorithm>
#include <utility>

#include "tests/ps/shard/simulation/ledger.h"

namespace gradrail::ps::simulation {
namespace {

constexpr uint64_t kOpeningStep = 0;

}  // namespace

ModelWorker::ModelWorker(WorkerIndex index, const Plan& plan, Random& random, Port port)
    : index_(index), plan_(plan), random_(random), port_(std::move(port)) {}

void ModelWorker::boot(uint64_t incarnation) {
  incarnation_ = incarnation;
  phase_ = Phase::joining;
  buckets_.clear();
  for (uint32_t shard = 0; shard < plan_.bucket_counts.size(); ++shard) {
    for (uint32_t bucket = 0; bucket < plan_.bucket_counts[shard]; ++bucket) buckets_.push_back({shard, bucket});
  }
}

void ModelWorker::start(uint64_t first_step) {
  first_step_ = first_step;
  if (index_ == 0 || plan_.opens_with_pull) return begin(Phase::opening, kOpeningStep);
  begin(Phase::exchanging, first_step);
}

void ModelWorker::repeat_unanswered(uint32_t shard) {
  if (!running()) return;
  shuffle();
  for (const Bucket& bucket : buckets_) {
    if (bucket.shard == shard && !bucket.answered) send(bucket);
  }
}

void ModelWorker::on_answer(const Answer& answer) {
  if (!running()) return;
  port_.accepted(answer);
  const auto bucket = std::find_if(buckets_.begin(), buckets_.end(), [&](const Bucket& candidate) {
    return candidate.shard == answer.shard && candidate.bucket == answer.bucket;
  });
  if (answer.step != step_ || bucket->answered) return;
  bucket->answered = true;
  bucket->version = answer.version;
  bucket->next_step = answer.next_step;
  bucket->is_late = answer.dropped && plan_.mode.kind == ModeKind::quorum && !plan_.mode.drops_late &&
                    bucket->kind == ArrivalKind::push;
  if (--unanswered_count_ == 0) on_all_answered();
}

void ModelWorker::begin(Phase phase, uint64_t step) {
  phase_ = phase;
  step_ = step;
  for (Bucket& bucket : buckets_) {
    bucket.kind = ArrivalKind::push;
    if (phase_ == Phase::opening) bucket.kind = index_ == 0 ? ArrivalKind::initialise : ArrivalKind::pull;
  }
  send_all();
}

void ModelWorker::send_all() {
  unanswered_count_ = static_cast<uint32_t>(buckets_.size());
  for (Bucket& bucket : buckets_) bucket.answered = bucket.is_late = false;
  shuffle();
  for (const Bucket& bucket : buckets_) send(bucket);
}

void ModelWorker::send(const Bucket& bucket) const {
  const Arrival arrival{index_, incarnation_, bucket.kind, bucket.bucket, step_, bucket.version};
  // As an initial value this is just another number; a restarted chief has another one, which must not be taken.
  port_.send(bucket.shard, arrival, gradient_of({index_, incarnation_, bucket.shard, bucket.bucket}, step_));
}

void ModelWorker::on_all_answered() {
  const auto oldest = std::min_element(buckets_.begin(), buckets_.end(),
                                       [](const Bucket& a, const Bucket& b) { return a.version < b.version; });
  const auto is_late = [](const Bucket& bucket) { return bucket.is_late; };
  uint64_t next = step_ + 1;
  if (phase_ == Phase::opening) {
    // As Exchange::raise_first_step(): the others have gone on since the join.
    next = plan_.mode.sums() ? oldest->version + 1 : 0;
    if (plan_.mode.kind == ModeKind::ssp) {
      next = std::min_element(buckets_.begin(), buckets_.end(), [](const Bucket& a, const Bucket& b) {
               return a.next_step < b.next_step;
             })->next_step;
    }
    next = std::max(next, first_step_);
  } else if (std::any_of(buckets_.begin(), buckets_.end(), is_late)) {
    step_ = std::max(next, oldest->version + 1);
    for (Bucket& bucket : buckets_) bucket.kind = bucket.is_late ? ArrivalKind::push : ArrivalKind::absent;
    return send_all();
  } else if (plan_.mode.sums() && plan_.jumps_ahead) {
    next = std::max(next, oldest->version + 1);
  }
  if (next <= plan_.last_step()) return begin(Phase::exchanging, next);
  phase_ = Phase::gone;
  port_.done();
}

void ModelWorker::shuffle() {
  for (size_t i = buckets_.size(); i > 1; --i) std::swap(buckets_[i - 1], buckets_[random_.below(i)]);
}

}  // namespace gradrail::ps::simulation
