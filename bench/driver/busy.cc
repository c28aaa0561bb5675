#include "bench/driver/busy.h"

#include <chrono>
#include <cstdint>
#include <fstream>
#include <optional>
#include <thread>

#include "fmt/format.h"

namespace gradrail::bench {
namespace {

// The load average would count our own last run; the kernel counts in steps of 10 ms.
constexpr auto kLook = std::chrono::milliseconds(200);
constexpr double kTooMuch = 0.3;  // share of all cores: one of two is taken for more than half of the time

struct Ticks {
  uint64_t all = 0;
  uint64_t idle = 0;
};

std::optional<Ticks> ticks_now() {
  std::ifstream file("/proc/stat");
  std::string name;
  file >> name;
  Ticks ticks;
  uint64_t value = 0;
  // Guest times follow; the kernel has counted them as user and nice already.
  for (int column = 0; column < 8 && file >> value; ++column) {  // user nice system idle iowait irq softirq steal
    // All columns are counted: steal is time of this machine that its host gave to another.
    ticks.all += value;
    // A core that waits for a disk is free for a measurement.
    if (column == 3 || column == 4) ticks.idle += value;
  }
  if (name != "cpu" || ticks.all == 0) return std::nullopt;
  return ticks;
}

}  // namespace

std::string busy_warning() {
  const std::optional<Ticks> before = ticks_now();
  std::this_thread::sleep_for(kLook);
  const std::optional<Ticks> after = ticks_now();
  // Containers may hide or emulate /proc/stat. No warning is then better than a wrong one.
  if (!before || !after || after->all <= before->all) return "";
  const double idle = static_cast<double>(after->idle - before->idle) / static_cast<double>(after->all - before->all);
  if (1.0 - idle < kTooMuch) return "";
  double load = 0.0;
  std::ifstream("/proc/loadavg") >> load;
  return fmt::format(
      "warning: other processes use {:.0f} % of {} cores (load average {:.1f}): times are too long, ratios inexact",
      100.0 * (1.0 - idle), std::thread::hardware_concurrency(), load);
}

}  // namespace gradrail::bench
