#include "gpu/reduce/tower_sum_host.h"

#include <unistd.h>

#include <algorithm>

#include "base/check.h"
#include "base/clock.h"
#include "base/status.h"
#include "fmt/format.h"
#include "gpu/compute/stream_marks.h"

namespace gradrail::gpu {

HostTowerSum::HostTowerSum(absl::Span<Compute* const> towers, Duration answer_timeout)
    : answer_timeout_(answer_timeout), towers_(towers.size()) {
  for (size_t i = 0; i < towers.size(); ++i) towers_[i].compute = towers[i];
}

/// Copies into the staging memory may still be under way after an abort: the destructor waits for them.
HostTowerSum::~HostTowerSum() {
  for (Tower& tower : towers_) tower.compute->finish().IgnoreError();
}

std::unique_ptr<HostTowerSum::Staging> HostTowerSum::find_staging(Tower& tower, size_t count) {
  const auto fits = [&](const std::unique_ptr<Staging>& staging) { return staging->values.size() >= count; };
  if (const auto found = std::find_if(tower.spare.begin(), tower.spare.end(), fits); found != tower.spare.end()) {
    std::unique_ptr<Staging> staging = std::move(*found);
    tower.spare.erase(found);
    return staging;
  }
  auto staging = std::make_unique<Staging>();
  // A driver pins a page once: small buffers next to each other on one page could not all be pinned.
  staging->values.reserve(count + static_cast<size_t>(sysconf(_SC_PAGESIZE)) / sizeof(float));
  staging->values.resize(std::max<size_t>(1, count));
  // Unpinned, the copy waits for the tower's work to end: slower, not wrong.
  absl::StatusOr<std::unique_ptr<Pin>> pin =
      tower.compute->pin(staging->values.data(), staging->values.size() * sizeof(float));
  if (pin.ok()) staging->pin = *std::move(pin);
  return staging;
}

absl::StatusOr<CopyTicket> HostTowerSum::start(size_t index, absl::Span<const Part> parts) {
  for (const Part& part : parts) GRADRAIL_RETURN_IF_ERROR(start_one(index, part));
  return towers_[index].last;
}

absl::Status HostTowerSum::start_one(size_t index, const Part& part) {
  GRADRAIL_RETURN_IF_ERROR(error());
  Tower& tower = towers_[index];
  Started started = {.ticket = ++tower.last, .part = part};
  started.staging = find_staging(tower, part.count);
  started.download = tower.compute->download(started.staging->values.data(), part.gradient, part.count * sizeof(float));
  const CopyTicket ticket = started.ticket;
  tower.started.push_back(std::move(started));
  const MutexLock lock(mutex_);
  while (first_round_ + rounds_.size() <= ticket) {
    rounds_.push_back({.arrived = std::vector<const float*>(towers_.size()), .count = part.count});
  }
  if (round(ticket).count != part.count && error_.ok()) {
    error_ = absl::InvalidArgumentError(
        fmt::format("tower {} averages {} elements where another has {}: towers go in one order", index, part.count,
                    round(ticket).count));
  }
  return error_;
}

/// Records the arrivals of the tower's device; sums if it was the last missing tower.
absl::Status HostTowerSum::arrive(size_t index, Started& started) {
  // The copy is done: this wait only returns the error.
  GRADRAIL_RETURN_IF_ERROR(towers_[index].compute->wait(started.download));
  started.arrived = true;
  std::vector<const float*> sources;
  std::vector<float> mean;
  {
    const MutexLock lock(mutex_);
    Round& all = round(started.ticket);
    all.arrived[index] = started.staging->values.data();
    if (++all.arrived_count < towers_.size()) return absl::OkStatus();
    sources = all.arrived;
  }
  mean.assign(sources[0], sources[0] + started.part.count);
  for (size_t tower = 1; tower < sources.size(); ++tower) {
    for (size_t i = 0; i < started.part.count; ++i) mean[i] += sources[tower][i];
  }
  const float share = 1.0f / static_cast<float>(sources.size());
  for (float& value : mean) value *= share;
  const MutexLock lock(mutex_);
  round(started.ticket).mean = std::move(mean);
  round(started.ticket).done = true;
  return absl::OkStatus();
}

/// Takes the mean, when there is one.
bool HostTowerSum::deliver(Tower& tower, Started& started) {
  MutexLock lock(mutex_);
  Round& all = round(started.ticket);
  if (!all.done) return false;
  lock.unlock();  // a round that is done changes only when the last tower has taken it
  if (started.part.host != nullptr) std::copy(all.mean.begin(), all.mean.end(), started.part.host);
  // No other tower reads this tower's staging any more. Unlike the mean, it stays until a later download was waited
  // for.
  std::copy(all.mean.begin(), all.mean.end(), started.staging->values.begin());
  tower.compute->upload(started.part.gradient, started.staging->values.data(), started.part.count * sizeof(float));
  lock.lock();
  ++all.taken;
  while (!rounds_.empty() && rounds_.front().taken == towers_.size()) {
    rounds_.pop_front();
    ++first_round_;
  }
  return true;
}

void HostTowerSum::advance(size_t index) {
  Tower& tower = towers_[index];
  for (Started& started : tower.started) {
    if (started.arrived) continue;
    if (!tower.compute->is_done(started.download)) break;
    if (const absl::Status arrived = arrive(index, started); !arrived.ok()) return abort(arrived);
  }
  while (!tower.started.empty() && tower.started.front().arrived && deliver(tower, tower.started.front())) {
    tower.spare.push_back(std::move(tower.started.front().staging));
    tower.started.pop_front();
  }
}

bool HostTowerSum::is_done(size_t index, CopyTicket ticket) {
  if (!error().ok()) return true;
  advance(index);
  const Tower& tower = towers_[index];
  return tower.started.empty() || ticket < tower.started.front().ticket || !error().ok();
}

absl::Status HostTowerSum::wait(size_t index, CopyTicket ticket) {
  const TimePoint start = Clock::now();
  for (WaitInTurns wait; !is_done(index, ticket); wait.turn()) {
    if (Clock::now() - start < answer_timeout_) continue;
    abort(absl::UnavailableError(
        fmt::format("tower {} waited {:.1f} s for the gradients of the other towers", index, seconds_since(start))));
  }
  return error();
}

void HostTowerSum::abort(const absl::Status& why) {
  GRADRAIL_CHECK(!why.ok());
  const MutexLock lock(mutex_);
  if (error_.ok()) error_ = why;
}

absl::Status HostTowerSum::error() {
  const MutexLock lock(mutex_);
  return error_;
}

}  // namespace gradrail::gpu
