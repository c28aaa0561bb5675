#include "bench/driver/harness.h"

#include <sys/utsname.h>

#include <charconv>
#include <fstream>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "fmt/format.h"

namespace gradrail::bench {
namespace {

// A median of operations that take longer than the budget.
constexpr size_t kFewest = 5;

}  // namespace

Times measure(double seconds, const std::function<void()>& prepare, const std::function<void()>& body) {
  std::vector<double> micros;
  // The first pass warms up: its times are cleared.
  for (const double budget : {seconds / 10, seconds}) {
    micros.clear();
    const TimePoint start = Clock::now();
    while (micros.size() < kFewest || seconds_since(start) < budget) {
      // Outside the clock: for instance the gradient that a training step would write.
      prepare();
      const TimePoint begin = Clock::now();
      body();
      micros.push_back(static_cast<double>(nanoseconds_since(begin)) * 1e-3);
    }
  }
  return Times::of(micros);
}

uint64_t parse_size(const std::string& text) {
  uint64_t value = 0;
  const char* const end = text.data() + text.size();
  const auto [unit, error] = std::from_chars(text.data(), end, value);
  // 0 is no valid size, so it also means an error.
  if (error != std::errc() || end - unit > 1) return 0;
  const int shift = unit == end ? 0 : *unit == 'K' ? 10 : *unit == 'M' ? 20 : *unit == 'G' ? 30 : -1;
  return shift < 0 || value > (UINT64_MAX >> shift) ? 0 : value << shift;
}

std::string json_error_text(const std::exception& error) {
  const std::string text = error.what();
  return text.substr(text.find(' ') + 1);
}

std::string machine() {
  std::string processor = "unknown processor";
  std::ifstream info("/proc/cpuinfo");
  for (std::string line; std::getline(info, line);) {
    // x86 only. ARM has no such line, and "unknown processor" stays.
    if (line.starts_with("model name")) {
      processor = line.substr(line.find(':') + 2);
      break;
    }
  }
  utsname kernel{};
  uname(&kernel);
  return fmt::format("{}, {} cores, Linux {}", processor, std::thread::hardware_concurrency(), kernel.release);
}

}  // namespace gradrail::bench
