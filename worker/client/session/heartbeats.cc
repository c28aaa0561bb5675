#include "worker/client/session/heartbeats.h"

#include <pthread.h>

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "base/resource_limits.h"
#include "base/status.h"

namespace gradrail::worker {

Heartbeats::~Heartbeats() {
  {
    const MutexLock lock(mutex_);
    GRADRAIL_CHECK(entries_.empty());
    is_ending_ = true;
  }
  changed_.notify_all();
  if (thread_.joinable()) thread_.join();
}

absl::Status Heartbeats::start() {
  if (thread_.joinable()) return absl::OkStatus();
  GRADRAIL_ASSIGN_OR_RETURN(thread_, start_thread("of heartbeats", [this] { run(); }));
  return absl::OkStatus();
}

uint64_t Heartbeats::add(Turn turn) {
  GRADRAIL_CHECK(thread_.joinable());
  const MutexLock lock(mutex_);
  const uint64_t number = next_number_++;
  entries_[number] = {.turn = std::move(turn), .due = TimePoint::max()};
  return number;
}

void Heartbeats::wake(uint64_t number) {
  {
    const MutexLock lock(mutex_);
    const auto place = entries_.find(number);
    if (place == entries_.end()) return;
    place->second.due = Clock::now();
  }
  changed_.notify_all();
}

void Heartbeats::remove(uint64_t number) {
  MutexLock lock(mutex_);
  while (running_ == number) changed_.wait(lock);
  entries_.erase(number);
}

void Heartbeats::run() {
  pthread_setname_np(pthread_self(), "gradrail-beat");
  MutexLock lock(mutex_);
  while (!is_ending_) {
    // A client has few servers: a search is enough.
    const auto next = std::min_element(entries_.begin(), entries_.end(),
                                       [](const auto& a, const auto& b) { return a.second.due < b.second.due; });
    if (next == entries_.end() || next->second.due == TimePoint::max()) {
      changed_.wait(lock);
      continue;
    }
    if (next->second.due > Clock::now()) {
      changed_.wait_until(lock, next->second.due);
      continue;
    }
    next->second.due = TimePoint::max();
    running_ = next->first;
    lock.unlock();
    const TimePoint due = next->second.turn();  // remove() waits: the entry stays
    lock.lock();
    next->second.due = std::min(next->second.due, due);  // wake() may have been called meanwhile
    running_ = 0;
    changed_.notify_all();
  }
}

}  // namespace gradrail::worker
