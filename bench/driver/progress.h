#pragma once

#include <string>

#include "gradrail/clock.h"

namespace gradrail::bench {

/// "size 3 of 11, round 2 of 3, about 40 s left", one overwritten line where standard error is a terminal;
/// nothing elsewhere.
/// Threads  One.
class Progress {
 public:
  explicit Progress(size_t steps);
  ~Progress() { clear(); }
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  /// Shows the current step as text, before it begins.
  void show(const std::string& where);
  void step_done() { ++done_; }
  /// Clears the line before other output.
  void clear();

 private:
  const bool is_terminal_;
  const size_t steps_;
  const TimePoint start_;
  size_t done_ = 0;
  bool shown_ = false;
};

}  // namespace gradrail::bench
