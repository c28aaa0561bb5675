#include "ps/shard/grace_windows.h"

#include <algorithm>
#include <chrono>

#include "base/check.h"
#include "base/clock.h"

namespace gradrail::ps {
namespace {

/// A gradient that is later belongs to a worker that has failed, or that is slower by much than the others.
constexpr Duration kLongestLearnedWindow = std::chrono::seconds(10);
/// Percentile of the lags. One late gradient in ten may be missed: the window of a single slow step would hold up all
/// others.
constexpr size_t kPercentile = 90;
/// Number of windows for which no lag is known yet. A lag is known when its worker takes part in a further step of the
/// fragment.
constexpr uint64_t kFirstWindows = 2;
/// Length of a window in percent of the percentile: room for the jitter of equal lags.
constexpr int kReserve = 125;

}  // namespace

void GraceWindows::reset(const Grace& grace, const std::vector<Place>& places, TimePoint now) {
  *this = GraceWindows();
  grace_ = grace;
  if (!grace_.any()) return;
  for (const Place& place : places) {
    buckets_.push_back({.place = place, .end = {}, .applied_at = now, .latest = {}, .previous = {}});
    if (place.fragment >= fragments_.size()) fragments_.resize(place.fragment + 1);
  }
}

void GraceWindows::on_arrival(WorkerIndex worker, uint32_t bucket_index, uint64_t step, TimePoint now) {
  if (!grace_.is_auto) return;
  const Bucket& bucket = buckets_[bucket_index];
  Lag& lag = under_way_[{worker, bucket.place.fragment}];
  if (lag.step != step) {
    if (lag.longest > Duration::zero()) record(lag.longest);
    lag = {.step = step};
  }
  // A gradient that is several steps late counts from the earliest known time.
  const bool is_latest = step == bucket.latest.step;
  if (!is_latest && step > bucket.previous.step) return;
  const Moment& moment = is_latest ? bucket.latest : bucket.previous;
  lag.longest = std::max(lag.longest, now - moment.at);
}

void GraceWindows::on_applied(uint32_t bucket_index, TimePoint now) {
  if (!grace_.any()) return;
  Bucket& bucket = buckets_[bucket_index];
  bucket.applied_at = now;
  if (!bucket.end) return;
  ends_.erase({*bucket.end, bucket_index});
  bucket.end.reset();
}

void GraceWindows::begin(uint32_t bucket_index, uint64_t step, TimePoint now) {
  Bucket& bucket = buckets_[bucket_index];
  GRADRAIL_CHECK(!bucket.end);
  bucket.previous = bucket.latest;
  bucket.latest = {.step = step, .at = now};
  const std::optional<uint32_t> before = bucket.place.before;
  const bool was_awaited = before.has_value() && buckets_[*before].ended_step == step;
  bucket.end = was_awaited ? now : now + length_of(bucket, step, now);
  ends_.insert({*bucket.end, bucket_index});
}

std::optional<Duration> GraceWindows::learned() const {
  if (!grace_.is_auto) return std::nullopt;
  Duration longest{};
  for (const Fragment& fragment : fragments_) longest = std::max(longest, fragment.length);
  return longest;
}

std::optional<GraceWindows::End> GraceWindows::take_ended(TimePoint now) {
  if (next_end() > now) return std::nullopt;
  const uint32_t index = ends_.begin()->second;
  ends_.erase(ends_.begin());
  Bucket& bucket = buckets_[index];
  bucket.end.reset();
  bucket.ended_step = bucket.latest.step;
  return End{.bucket = index, .step = bucket.ended_step};
}

Duration GraceWindows::length_of(const Bucket& bucket, uint64_t step, TimePoint now) {
  if (!grace_.is_auto) return from_seconds(grace_.seconds);
  Fragment& fragment = fragments_[bucket.place.fragment];
  // The first bucket decides for the others.
  if (step > fragment.step) {
    const Duration limit = std::min(now - bucket.applied_at, kLongestLearnedWindow);
    fragment.step = step;
    fragment.length = lag_count_ == 0 && fragment.count < kFirstWindows ? limit : learned_length(limit);
    ++fragment.count;
  }
  return fragment.length;
}

Duration GraceWindows::learned_length(Duration limit) const {
  std::array<Duration, kLags> within;
  const auto known = lags_.begin() + static_cast<ptrdiff_t>(std::min<uint64_t>(lag_count_, kLags));
  const auto end = std::copy_if(lags_.begin(), known, within.begin(), [&](Duration lag) { return lag <= limit; });
  const auto count = static_cast<size_t>(end - within.begin());
  if (count == 0) return Duration::zero();
  const auto place = within.begin() + static_cast<ptrdiff_t>((count * kPercentile + 99) / 100 - 1);
  std::nth_element(within.begin(), place, end);
  return std::min(limit, *place * kReserve / 100);
}

void GraceWindows::record(Duration lag) { lags_[lag_count_++ % kLags] = lag; }

}  // namespace gradrail::ps
