#include "bench/driver/progress.h"

#include <unistd.h>

#include <cstdio>

#include "base/clock.h"
#include "fmt/format.h"

namespace gradrail::bench {
namespace {

// The text moves to the first column, then erases to the end of the line (ECMA-48, EL).
constexpr const char* kClearLine = "\r\033[K";

/// The remaining time, in words.
std::string about(double seconds) {
  // The estimate of a longer run is not that exact: sizes differ in their time.
  if (seconds < 90) return fmt::format("about {:.0f} s left", seconds);
  return fmt::format("about {:.0f} minutes left", seconds / 60);
}

}  // namespace

// The output is stderr: stdout has the table, which a user may redirect to a file.
Progress::Progress(size_t steps) : is_terminal_(isatty(STDERR_FILENO) == 1), steps_(steps), start_(Clock::now()) {}

void Progress::show(const std::string& where) {
  if (!is_terminal_) return;
  const double each = done_ == 0 ? 0.0 : seconds_since(start_) / static_cast<double>(done_);
  const std::string left = done_ == 0 ? "" : ", " + about(each * static_cast<double>(steps_ - done_));
  fmt::print(stderr, "{}{}{}", kClearLine, where, left);
  std::fflush(stderr);
  shown_ = true;
}

void Progress::clear() {
  if (!shown_) return;
  fmt::print(stderr, "{}", kClearLine);
  std::fflush(stderr);
  shown_ = false;
}

}  // namespace gradrail::bench
