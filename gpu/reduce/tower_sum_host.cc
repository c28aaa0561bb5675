#include "gpu/reduce/tower_sum_host.h"

#include <algorithm>

#include "base/check.h"
#include "base/status.h"
#include "fmt/format.h"
#include "gpu/compute/stream_marks.h"

namespace gradrail::gpu {

HostTowerSum::HostTowerSum(absl::Span<Compute* const> towers, Duration answer_timeout)
    : answer_timeout_(answer_timeout), towers_(towers.size()) {
  for (size_t i = 0; i < towers.size(); ++i) towers_[i].compute = towers[i];
}

/// After an abort copies into the staging memory may still be under way.
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
  staging->values.resize(std::max<size_t>(1, count));
  // Unpinned, the copy waits for the tower's work to end: slower, not wrong.
  absl::StatusOr<std::unique_ptr<Pin>> pin =
      tower.compute->pin(staging->values.data(), staging->values.size() * sizeof(float));
  if (pin.ok()) staging->pin = *std::move(pin);
  return staging;
}

absl::StatusOr<CopyTicket> HostTowerSum::start(size_t index, float* gradient, size_t count, float* host) {
  GRADRAIL_RETURN_IF_ERROR(error());
  Tower& tower = towers_[index];
  Part part = {.ticket = ++tower.last, .gradient = gradient, .host = host, .count = count};
  part.staging = find_staging(tower, count);
  part.download = tower.compute->download(part.staging->values.data(), gradient, count * sizeof(float));
  const CopyTicket ticket = part.ticket;
  tower.parts.push_back(std::move(part));
  const MutexLock lock(mutex_);
  while (first_round_ + rounds_.size() <= ticket) {
    rounds_.push_back({.arrived = std::vector<const float*>(towers_.size()), .count = count});
  }
  if (round(ticket).count == count) return ticket;
  if (error_.ok()) {
    error_ = absl::InvalidArgumentError(
        fmt::format("tower {} averages {} elements where another has {}: towers go in one order", index, count,
                    round(ticket).count));
  }
  return error_;
}

/// Makes known what has come from the tower's device; adds up when it was the last one that was missing.
absl::Status HostTowerSum::arrive(size_t index, Part& part) {
  // Done: this wait only asks for the error.
  GRADRAIL_RETURN_IF_ERROR(towers_[index].compute->wait(part.download));
  part.arrived = true;
  std::vector<const float*> sources;
  std::vector<float> mean;
  {
    const MutexLock lock(mutex_);
    Round& all = round(part.ticket);
    all.arrived[index] = part.staging->values.data();
    if (++all.arrived_count < towers_.size()) return absl::OkStatus();
    sources = all.arrived;
  }
  mean.assign(sources[0], sources[0] + part.count);
  for (size_t tower = 1; tower < sources.size(); ++tower) {
    for (size_t i = 0; i < part.count; ++i) mean[i] += sources[tower][i];
  }
  const float share = 1.0f / static_cast<float>(sources.size());
  for (float& value : mean) value *= share;
  const MutexLock lock(mutex_);
  round(part.ticket).mean = std::move(mean);
  round(part.ticket).done = true;
  return absl::OkStatus();
}

/// Takes the mean, when there is one.
bool HostTowerSum::deliver(Tower& tower, Part& part) {
  MutexLock lock(mutex_);
  Round& all = round(part.ticket);
  if (!all.done) return false;
  lock.unlock();  // a round that is done changes only when the last tower has taken it
  if (part.host != nullptr) std::copy(all.mean.begin(), all.mean.end(), part.host);
  // No other tower reads this tower's staging any more. Unlike the mean, it stays until a later download was waited
  // for.
  std::copy(all.mean.begin(), all.mean.end(), part.staging->values.begin());
  tower.compute->upload(part.gradient, part.staging->values.data(), part.count * sizeof(float));
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
  for (Part& part : tower.parts) {
    if (part.arrived) continue;
    if (!tower.compute->is_done(part.download)) break;
    if (const absl::Status arrived = arrive(index, part); !arrived.ok()) return abort(arrived);
  }
  while (!tower.parts.empty() && tower.parts.front().arrived && deliver(tower, tower.parts.front())) {
    tower.spare.push_back(std::move(tower.parts.front().staging));
    tower.parts.pop_front();
  }
}

bool HostTowerSum::is_done(size_t index, CopyTicket ticket) {
  if (!error().ok()) return true;
  advance(index);
  const Tower& tower = towers_[index];
  return tower.parts.empty() || ticket < tower.parts.front().ticket || !error().ok();
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
