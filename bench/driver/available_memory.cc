#include "bench/driver/available_memory.h"

#include <sstream>
#include <string>

#include "base/read_file.h"

namespace gradrail::bench {

std::optional<uint64_t> available_memory() {
  constexpr size_t kMostBytes = 64 << 10;
  std::istringstream text(read_file("/proc/meminfo", kMostBytes).value_or(""));
  // "MemAvailable:   20512340 kB"
  uint64_t kib = 0;
  for (std::string line, name; std::getline(text, line);)
    if (std::istringstream words(line); words >> name >> kib && name == "MemAvailable:") return kib * 1024;
  return std::nullopt;
}

}  // namespace gradrail::bench
