#pragma once

#include <atomic>

namespace gradrail::transport::loopback {

/// Wakes the owner of one context, and costs a system call only when that owner is about to sleep.
/// Threads  ring(): any thread. The rest: owner thread.
class Doorbell {
 public:
  Doorbell();
  ~Doorbell();
  Doorbell(const Doorbell&) = delete;
  Doorbell& operator=(const Doorbell&) = delete;

  /// Call after the work is in its queue.
  void ring();
  /// Call before looking into the queues: what is queued later than that look rings.
  void arm();
  int fd() const { return fd_; }

 private:
  int fd_;
  std::atomic<bool> armed_ = false;
};

}  // namespace gradrail::transport::loopback
