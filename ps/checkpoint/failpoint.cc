#include "ps/checkpoint/failpoint.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <optional>
#include <thread>
#include <vector>

#include "absl/strings/str_split.h"
#include "base/check.h"
#include "base/parse_number.h"

namespace gradrail::ps {

void failpoint(std::string_view place) {
  const char* setting = std::getenv("GRADRAIL_FAILPOINT");
  if (setting == nullptr) return;
  const auto& places = kCheckpointFailpoints;
  GRADRAIL_CHECK(std::find(places.begin(), places.end(), place) != places.end());
  const std::vector<std::string> parts = absl::StrSplit(setting, ':');
  const std::optional<int> number = parts.size() == 3 ? parse_number<int>(parts[2]) : std::nullopt;
  // A setting that does not parse has no effect: it comes from a test alone.
  if (!number || parts[1] != place) return;
  static std::atomic<int> times_here = 0;  // of the one place in the setting
  if (parts[0] == "sleep") std::this_thread::sleep_for(std::chrono::milliseconds(*number));
  // SIGKILL: no destructor runs, as in a crash of the host.
  if (parts[0] == "kill" && ++times_here == *number) raise(SIGKILL);
}

}  // namespace gradrail::ps
