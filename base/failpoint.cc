#include "base/failpoint.h"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <thread>
#include <vector>

#include "absl/strings/str_split.h"
#include "base/check.h"
#include "base/parse_number.h"

namespace gradrail {

void failpoint(std::string_view place) {
  const char* setting = std::getenv("GRADRAIL_FAILPOINT");
  if (setting == nullptr) return;
  const auto& places = kFailpoints;
  GRADRAIL_CHECK(std::find(places.begin(), places.end(), place) != places.end());
  const std::vector<std::string> parts = absl::StrSplit(setting, absl::MaxSplits(':', 2));
  if (parts.size() != 3 || parts[1] != place) return;
  if (parts[0] == "hold") {
    while (access(parts[2].c_str(), F_OK) == 0) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  static std::atomic<int> times_here = 0;  // passes of the one place in the setting
  // SIGKILL: no destructor runs, as in a crash of the host.
  if (parts[0] == "kill" && ++times_here == parse_number<int>(parts[2])) raise(SIGKILL);
}

}  // namespace gradrail
