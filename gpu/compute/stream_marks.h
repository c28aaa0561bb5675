#pragma once

#include <deque>
#include <memory>
#include <vector>

#include "gpu/compute/compute.h"
#include "gpu/compute/stream_flags.h"
#include "gpu/driver/stream.h"
#include "gradrail/clock.h"

namespace gradrail::gpu {

/// Reports the progress of one stream; tickets are marks, in rising order. The stream writes its newest ticket into
/// host memory, so that a look costs no call of the driver. Each mark is an event where the device has no such writes.
/// Threads  One owner, or the caller's lock.
class StreamMarks {
 public:
  StreamMarks(SharedContext context, Duration answer_timeout);

  /// Records a mark behind all operations on the stream. Returns the driver's error.
  cuda::Result mark(const Stream& stream, CopyTicket ticket);
  /// Checks the progress of the device; never blocks. Returns the device's error, or kNotReady while operations are in
  /// flight.
  cuda::Result collect();
  /// True as well for tickets that were never marked.
  bool is_reached(CopyTicket ticket) const { return under_way_.empty() || ticket < under_way_.front().ticket; }
  /// Something is under way, and nothing has ended for longer than the timeout. Another user of the device may have
  /// waited that long already: its abandon() counts for all.
  bool is_overdue() const {
    return !under_way_.empty() && (context_->is_abandoned() || Clock::now() - last_answer_ > answer_timeout_);
  }
  /// The device was lost: none of its marks will be reached.
  void forget() { under_way_.clear(); }

 private:
  struct Mark {
    CopyTicket ticket;
    Event event;  ///< none with flags
  };

  cuda::Result record_event(const Stream& stream, Event& event);
  cuda::Result read_flag();
  cuda::Result query_driver();

  const SharedContext context_;
  const Duration answer_timeout_;
  std::deque<Mark> under_way_;  ///< oldest first
  std::vector<Event> spare_;
  std::unique_ptr<StreamFlags> flags_;  ///< null with events
  const Stream* stream_ = nullptr;      ///< stream of the newest mark
  TimePoint queried_;                   ///< time of the last query of the driver for an error
  TimePoint last_answer_;               ///< time of the last progress of the device, or when it had nothing to do
};

/// The host's wait for a device: it polls first and sleeps later. A copy of a tensor usually ends within the first
/// polls; after them other threads need the core.
class WaitInTurns {
 public:
  void turn();

 private:
  int turns_ = 0;
};

}  // namespace gradrail::gpu
