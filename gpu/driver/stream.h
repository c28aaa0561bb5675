#pragma once

#include "absl/status/statusor.h"
#include "gpu/driver/device.h"

namespace gradrail::gpu {

/// A mark in a stream; no timing.
class Event {
 public:
  /// Errors  Those of to_status().
  static absl::StatusOr<Event> create(const SharedContext& context);
  /// An empty one, for make().
  Event() = default;
  cuda::Result make(SharedContext context);
  Event(Event&& other) noexcept;
  Event& operator=(Event&& other) noexcept;
  ~Event();

  cuda::Event handle() const { return handle_; }
  /// Returns kSuccess, kNotReady, or the earlier error of the device. Never blocks: progress threads may call it.
  cuda::Result query() const;

 private:
  SharedContext context_;
  cuda::Event handle_ = nullptr;
};

/// Work in order; streams run beside each other, and beside the default stream of others in the process.
class Stream {
 public:
  /// Errors  Those of to_status(). The stream has no implicit order with the default stream.
  static absl::StatusOr<Stream> create(SharedContext context);
  Stream() = default;
  Stream(Stream&& other) noexcept;
  Stream& operator=(Stream&& other) noexcept;
  ~Stream();

  cuda::Stream handle() const { return handle_; }
  /// Places the mark behind all work that was enqueued until now. A second record() moves it. Waits that were enqueued
  /// before keep the former place.
  cuda::Result record(const Event& event) const;
  /// State of all earlier work, in the form of Event::query().
  cuda::Result query() const;
  /// Later work of this stream starts behind the mark.
  cuda::Result wait_for(const Event& event) const;

 private:
  SharedContext context_;
  cuda::Stream handle_ = nullptr;
};

}  // namespace gradrail::gpu
