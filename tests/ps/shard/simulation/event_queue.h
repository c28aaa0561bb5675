#pragma once

#include <cstdint>
#include <functional>
#include <queue>
#include <utility>
#include <vector>

namespace gradrail::ps::simulation {

/// Virtual time. Events of one moment run in the order in which they were posted, so that a seed replays exactly.
class EventQueue {
 public:
  using Event = std::function<void()>;

  uint64_t now() const { return now_; }
  uint64_t events_run() const { return events_run_; }
  void post_at(uint64_t time, Event event) { heap_.push({time < now_ ? now_ : time, posted_++, std::move(event)}); }
  void post_in(uint64_t delay, Event event) { post_at(now_ + delay, std::move(event)); }

  /// False when nothing is left to run.
  bool run_one() {
    if (heap_.empty()) return false;
    const Entry entry = heap_.top();
    heap_.pop();
    now_ = entry.time;
    ++events_run_;
    entry.event();
    return true;
  }

 private:
  struct Entry {
    uint64_t time = 0;
    uint64_t order = 0;
    Event event;
    bool operator<(const Entry& other) const {  // priority_queue keeps the largest on top
      return time != other.time ? time > other.time : order > other.order;
    }
  };
  uint64_t now_ = 0;
  uint64_t posted_ = 0;
  uint64_t events_run_ = 0;
  std::priority_queue<Entry> heap_;
};

}  // namespace gradrail::ps::simulation
