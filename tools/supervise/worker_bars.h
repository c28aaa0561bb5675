#pragma once

#include <cstdint>
#include <map>
#include <string>

namespace gradrail::tools {

/// One progress bar per worker at the bottom of a terminal, fed from the workers' "Step:" lines.
/// Threads  One owner.
class WorkerBars {
 public:
  explicit WorkerBars(bool is_terminal) : is_terminal_(is_terminal) {}

  /// Whether the line reports a step; on a terminal its worker's bar then moves.
  bool take(uint32_t worker_index, const std::string& line);
  void print_above(const std::string& line);
  void clear();

 private:
  void draw();

  bool is_terminal_;
  std::map<uint32_t, std::string> bars_;
  size_t drawn_ = 0;  ///< lines of bars on the screen
};

}  // namespace gradrail::tools
