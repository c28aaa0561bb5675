#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <utility>

namespace gradrail::launch {

/// One progress bar per worker at the bottom of a terminal, fed from the lines of the workers.
/// Threads  One owner.
class WorkerBars {
 public:
  /// `bar_of_line`: TaskBodies::bar_of_line.
  using BarOfLine = std::function<std::optional<std::string>(uint32_t worker, const std::string& line)>;
  WorkerBars(bool is_terminal, BarOfLine bar_of_line)
      : is_terminal_(is_terminal), bar_of_line_(std::move(bar_of_line)) {}

  /// Whether the line reports a step; on a terminal its worker's bar then moves.
  bool take(uint32_t worker_index, const std::string& line);
  void print_above(const std::string& line);
  void clear();

 private:
  void draw();

  const bool is_terminal_;
  const BarOfLine bar_of_line_;
  std::map<uint32_t, std::string> bars_;
  size_t drawn_ = 0;  ///< lines of bars on the screen
};

}  // namespace gradrail::launch
