#include "bench/predict/progress.h"

#include <unistd.h>

#include <cstdio>

#include "fmt/format.h"

namespace gradrail::bench::predict {

Progress::Progress()
    : is_terminal_(isatty(STDERR_FILENO) == 1), begun_(Clock::now()), next_(begun_ + std::chrono::seconds(1)) {}

Progress::~Progress() {
  if (has_line_) fmt::print(stderr, "\r\x1b[K");
}

bool Progress::is_time() {
  const Clock::time_point now = Clock::now();
  if (now < next_) return false;
  next_ = now + std::chrono::milliseconds(500);
  return true;
}

void Progress::show(double done_share) {
  if (done_share <= 0) return;
  const double spent_s = std::chrono::duration<double>(Clock::now() - begun_).count();
  fmt::print(stderr, "\r\x1b[Kpredict: {:.0f} % of the simulation, at most {:.0f} s left", done_share * 100,
             spent_s / done_share * (1 - done_share));
  std::fflush(stderr);
  has_line_ = true;
}

}  // namespace gradrail::bench::predict
