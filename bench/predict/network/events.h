#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "base/check.h"

namespace gradrail::bench::predict {

/// Nanoseconds since the begin of the run.
using Time = double;

/// Something that happens at a moment. `object` and `detail` belong to `kind`.
struct Event {
  enum class Kind : uint32_t {
    link,       ///< a link may have finished a message: object is the link
    departure,  ///< a message enters its connection: object is the message
    arrival,    ///< the last byte of a message is at its target: object is the message
    push,       ///< the next bucket of a worker may leave: object is the worker
    window,     ///< a grace window has ended: object is the window
  };
  Time at = 0;
  uint64_t number = 0;  ///< order of insertion, for events of one moment
  Kind kind{};
  uint32_t object = 0;

  bool operator<(const Event& other) const { return at != other.at ? at < other.at : number < other.number; }
};

/// Events by time. Events of one moment keep their order of insertion, so that equal runs are equal.
/// A heap with four children of a node: half the levels of a binary one, and the children share a cache line or two.
class EventQueue {
 public:
  bool empty() const { return heap_.empty(); }
  uint64_t inserted() const { return inserted_; }

  void insert(Time at, Event::Kind kind, uint32_t object) {
    const Event event{at, inserted_++, kind, object};
    size_t place = heap_.size();
    heap_.push_back(event);
    while (place > 0) {
      const size_t parent = (place - 1) / kChildren;
      if (!(event < heap_[parent])) break;
      heap_[place] = heap_[parent];
      place = parent;
    }
    heap_[place] = event;
  }

  Event take() {
    GRADRAIL_CHECK(!heap_.empty());
    const Event first = heap_.front();
    const Event last = heap_.back();
    heap_.pop_back();
    if (heap_.empty()) return first;
    size_t place = 0;
    for (;;) {
      const size_t child = place * kChildren + 1;
      if (child >= heap_.size()) break;
      const size_t end = std::min(child + kChildren, heap_.size());
      size_t least = child;
      for (size_t i = child + 1; i < end; ++i) {
        if (heap_[i] < heap_[least]) least = i;
      }
      if (!(heap_[least] < last)) break;
      heap_[place] = heap_[least];
      place = least;
    }
    heap_[place] = last;
    return first;
  }

 private:
  static constexpr size_t kChildren = 4;
  std::vector<Event> heap_;
  uint64_t inserted_ = 0;
};

}  // namespace gradrail::bench::predict
