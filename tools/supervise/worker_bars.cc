#include "tools/supervise/worker_bars.h"

#include <cstdio>

#include "base/log.h"
#include "fmt/format.h"
#include "tools/train/progress_bar.h"

namespace gradrail::tools {

bool WorkerBars::take(uint32_t worker_index, const std::string& line) {
  unsigned long long step = 0;
  unsigned epoch = 0, batch = 0, batches = 0;
  float cost = 0.0f;
  // The multi-GPU tutorial's line says how fast, not how far: it moves no bar.
  if (std::sscanf(line.c_str(), "%*d-%*d-%*d %*s step %llu, loss = %f", &step, &cost) == 2) return true;
  // The formats of step_line() in worker/trainer/trainer.cc: a worker's stdout is a pipe, so its lines are all there
  // is.
  if (std::sscanf(line.c_str(), "Step: %llu,  Epoch: %u,  Batch: %u of %u,  Cost: %f", &step, &epoch, &batch, &batches,
                  &cost) != 5) {
    return false;
  }
  // Without a terminal the line is taken all the same: only the chief's steps belong to the output.
  if (!is_terminal_ || batches == 0) return true;
  bars_[worker_index] = ProgressBar::draw(static_cast<double>(batch) / batches,
                                          fmt::format("worker {}: epoch {}, cost {:.4f}", worker_index, epoch, cost));
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

}  // namespace gradrail::tools
