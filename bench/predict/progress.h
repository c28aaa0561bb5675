#pragma once

#include <chrono>
#include <cstdint>

namespace gradrail::bench::predict {

/// A line on a terminal (stderr) with the share of a simulation that is done and an estimate of the rest. The line
/// appears after a second, changes each half second and is erased at the end.
class Progress {
 public:
  Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;
  ~Progress();

  /// It is time to call show(). Cheap: for each event.
  bool is_due() { return is_terminal_ && (++calls_ & kMask) == 0 && is_time(); }
  void show(double done_share);

 private:
  static constexpr uint32_t kMask = (1 << 14) - 1;  // some milliseconds
  using Clock = std::chrono::steady_clock;

  bool is_time();

  bool is_terminal_;
  bool has_line_ = false;
  uint32_t calls_ = 0;
  Clock::time_point begun_, next_;
};

}  // namespace gradrail::bench::predict
