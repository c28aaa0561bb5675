#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "gradrail/clock.h"
#include "worker/trainer/trainer.h"

namespace gradrail::tools {

/// A bar on the last line of a terminal, redrawn at most ten times a second; elsewhere lines only.
/// Threads  One owner.
class ProgressBar {
 public:
  explicit ProgressBar(bool is_terminal) : is_terminal_(is_terminal) {}
  ~ProgressBar() { clear(); }

  void show(const worker::Progress& progress);
  /// A line of output; the bar stays below it.
  void print_above(const std::string& line);

  /// "[#######.............] 35 %  epoch 7 of 20" for a share in [0, 1].
  static std::string draw(double share, const std::string& label);

 private:
  void clear();

  bool is_terminal_;
  bool shown_ = false;
  TimePoint next_draw_{};
};

/// The bar of a worker that has printed this line of the training loop, "" for none; nullopt: the line reports no step.
std::optional<std::string> bar_of_line(uint32_t worker, const std::string& line);

}  // namespace gradrail::tools
