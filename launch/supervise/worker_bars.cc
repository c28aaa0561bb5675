#include "launch/supervise/worker_bars.h"

#include <cstdio>

#include "base/log.h"

namespace gradrail::launch {

bool WorkerBars::take(uint32_t worker_index, const std::string& line) {
  std::optional<std::string> bar = bar_of_line_(worker_index, line);
  if (!bar) return false;
  // Without a terminal the line is taken all the same: only the chief's steps belong to the output.
  if (!is_terminal_ || bar->empty()) return true;
  bars_[worker_index] = *std::move(bar);
  clear();
  draw();
  return true;
}

void WorkerBars::print_above(const std::string& line) {
  clear();
  print_text("{}\n", line);
  draw();
  std::fflush(stdout);
}

void WorkerBars::clear() {
  // The cursor moves up to the first bar; all below it is erased.
  if (drawn_ > 0) print_text("\033[{}A\r\033[J", drawn_);
  drawn_ = 0;
  std::fflush(stdout);
}

void WorkerBars::draw() {
  for (const auto& [worker, bar] : bars_) print_text("{}\n", bar);
  drawn_ = bars_.size();
  std::fflush(stdout);
}

}  // namespace gradrail::launch
