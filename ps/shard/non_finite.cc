#include "ps/shard/non_finite.h"

#include <utility>

#include "base/check.h"
#include "ps/optimizer/optimizer.h"
#include "ps/protocol/push_format.h"

namespace gradrail::ps {

void NonFiniteWatch::reset() {
  if (odd_count_ > 0) report_finite();
  states_.assign(partition_.bucket_count(), State::unknown);
  finite_count_ = odd_count_ = 0;
}

void NonFiniteWatch::on_initialised(const Action& action, absl::Span<const float> values) {
  if (partition_.device() != nullptr) return;
  const size_t at = first_non_finite(values);
  const bool is_finite = at == values.size();
  const bool was_odd = odd_count_ > 0;
  change(action.bucket, is_finite);
  if (was_odd || is_finite) return;  // a bucket is initialized once: it was not odd
  NonFinite first = found(action, NonFinite::Source::initial, values, at);
  first.worker = action.contributors[0];
  report(first);
}

void NonFiniteWatch::record(const Action& action, bool is_finite, absl::Span<const GradientTerm> terms) {
  const bool was_odd = odd_count_ > 0;
  const State before = change(action.bucket, is_finite);
  if (is_finite) {
    if (was_odd && odd_count_ == 0) report_finite();
    return;
  }
  const bool keeps_parameters = partition_.optimizer().kind != OptimizerKind::mean;
  // A bucket of which nothing is known may have had it before: the gradients are then its result.
  const bool is_known = before == State::finite || !keeps_parameters;
  const std::optional<NonFinite> first = is_known ? find_gradient(action, terms) : std::nullopt;
  if (!was_odd) report(first.has_value() ? *first : find_parameter(action, is_known));
}

/// Returns the state before.
NonFiniteWatch::State NonFiniteWatch::change(uint32_t bucket, bool is_finite) {
  GRADRAIL_CHECK(bucket < states_.size());
  const State before = std::exchange(states_[bucket], is_finite ? State::finite : State::odd);
  finite_count_ += static_cast<uint32_t>(is_finite) - static_cast<uint32_t>(before == State::finite);
  odd_count_ += static_cast<uint32_t>(!is_finite) - static_cast<uint32_t>(before == State::odd);
  return before;
}

/// Counts the gradients of the step with NaN or infinity, and returns the first one.
std::optional<NonFinite> NonFiniteWatch::find_gradient(const Action& action, absl::Span<const GradientTerm> terms) {
  decoded_.resize(partition_.bucket_range(action.bucket).count);
  std::optional<NonFinite> first;
  for (const GradientTerm& term : terms) {
    mean_of(absl::MakeConstSpan(&term.values, 1), {}, partition_.push_format(), absl::MakeSpan(decoded_));
    const size_t at = first_non_finite(decoded_);
    if (at == decoded_.size()) continue;
    ++gradients_[term.worker];
    if (first.has_value()) {
      ++first->further;
      continue;
    }
    first = found(action, NonFinite::Source::gradient, decoded_, at);
    first->worker = term.worker;
  }
  return first;
}

NonFinite NonFiniteWatch::find_parameter(const Action& action, bool is_known) const {
  const size_t count = partition_.bucket_range(action.bucket).count;
  const absl::StatusOr<const float*> fresh =
      partition_.store().fresh_parameters(partition_.offset(action.bucket), count);
  GRADRAIL_CHECK(fresh.ok());  // host memory, the only memory that is watched
  const absl::Span<const float> values(*fresh, count);
  const size_t at = first_non_finite(values);
  if (at == count) return find_state(action, is_known);
  return found(action, is_known ? NonFinite::Source::update : NonFinite::Source::unknown, values, at);
}

NonFinite NonFiniteWatch::find_state(const Action& action, bool is_known) const {
  std::vector<float> values(partition_.bucket_range(action.bucket).count);
  size_t at = values.size();
  for (int vector = 0; at == values.size(); ++vector) {
    GRADRAIL_CHECK(vector < state_vectors(partition_.optimizer().kind));
    const absl::Status copied =
        partition_.store().copy_state(vector, partition_.offset(action.bucket), absl::MakeSpan(values));
    GRADRAIL_CHECK(copied.ok());  // host memory, the only memory that is watched
    at = first_non_finite(values);
  }
  return found(action, is_known ? NonFinite::Source::state : NonFinite::Source::unknown, values, at);
}

NonFinite NonFiniteWatch::found(const Action& action, NonFinite::Source source, absl::Span<const float> values,
                                size_t at) const {
  GRADRAIL_CHECK(at < values.size());
  return {.source = source,
          .element = partition_.bucket_range(action.bucket).first + at,
          .value = values[at],
          .step = action.step,
          .version = action.version};
}

void NonFiniteWatch::report(const NonFinite& first) const {
  if (environment_.options.on_non_finite) environment_.options.on_non_finite(first);
}

void NonFiniteWatch::report_finite() const {
  if (environment_.options.on_finite_again) environment_.options.on_finite_again();
}

}  // namespace gradrail::ps
