#include "tools/train/progress_bar.h"

#include <algorithm>
#include <cmath>
#include <cstdio>

#include "base/log.h"
#include "fmt/format.h"

namespace gradrail::tools {
namespace {

constexpr int kWidth = 40;
// A step can take 0.1 ms: a line for each would make the terminal the slowest part.
constexpr auto kDrawEvery = std::chrono::milliseconds(100);

}  // namespace

std::string ProgressBar::draw(double share, const std::string& label) {
  const double clamped = std::clamp(share, 0.0, 1.0);
  const auto filled = static_cast<int>(std::lround(clamped * kWidth));
  return fmt::format("[{}{}] {:3.0f} %  {}", std::string(filled, '#'), std::string(kWidth - filled, '.'), clamped * 100,
                     label);
}

void ProgressBar::show(const worker::Progress& progress) {
  if (!is_terminal_) return;
  const TimePoint now = Clock::now();
  if (now < next_draw_) return;
  next_draw_ = now + kDrawEvery;
  // Epochs count from 1: the share is that of all epochs.
  const double done = static_cast<double>(progress.epoch - 1) +
                      static_cast<double>(progress.batch) / static_cast<double>(progress.batch_count);
  // Carriage return, then erase to the end of the line: a shorter bar leaves no rest of the longer one.
  print_text("\r\033[K{}", draw(done / progress.epoch_count, fmt::format("epoch {} of {}, cost {:.4f}", progress.epoch,
                                                                         progress.epoch_count, progress.cost)));
  std::fflush(stdout);
  shown_ = true;
}

void ProgressBar::print_above(const std::string& line) {
  clear();
  print_text("{}\n", line);
  std::fflush(stdout);
}

void ProgressBar::clear() {
  if (!shown_) return;
  print_text("\r\033[K");
  std::fflush(stdout);
  shown_ = false;
}

std::optional<std::string> bar_of_line(uint32_t worker, const std::string& line) {
  unsigned long long step = 0;
  unsigned epoch = 0, batch = 0, batches = 0;
  float cost = 0.0f;
  // The multi-GPU tutorial's line says how fast, not how far: it moves no bar.
  if (std::sscanf(line.c_str(), "%*d-%*d-%*d %*s step %llu, loss = %f", &step, &cost) == 2) return "";
  // The formats of step_line() in worker/trainer/trainer.cc: a worker's stdout is a pipe, so its lines are all there
  // is.
  if (std::sscanf(line.c_str(), "Step: %llu,  Epoch: %u,  Batch: %u of %u,  Cost: %f", &step, &epoch, &batch, &batches,
                  &cost) != 5)
    return std::nullopt;
  if (batches == 0) return "";
  return ProgressBar::draw(static_cast<double>(batch) / batches,
                           fmt::format("worker {}: epoch {}, cost {:.4f}", worker, epoch, cost));
}

}  // namespace gradrail::tools
