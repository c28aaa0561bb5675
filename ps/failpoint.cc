#include "ps/failpoint.h"

#include <algorithm>
#include <atomic>
#include <charconv>
#include <csignal>
#include <cstdlib>

#include "base/check.h"

namespace gradrail::ps {

void failpoint(std::string_view place) {
  const char* setting = std::getenv("GRADRAIL_KILL_AT");
  if (setting == nullptr) return;
  GRADRAIL_CHECK(std::find(kCheckpointFailpoints.begin(), kCheckpointFailpoints.end(), place) !=
                 kCheckpointFailpoints.end());
  const std::string_view wanted = setting;
  const size_t colon = std::min(wanted.find(':'), wanted.size());
  if (wanted.substr(0, colon) != place) return;
  static std::atomic<int> times_here = 0;  // one place in the life of a process
  int wanted_times = 1;
  if (colon < wanted.size()) std::from_chars(wanted.data() + colon + 1, wanted.data() + wanted.size(), wanted_times);
  if (++times_here == wanted_times) raise(SIGKILL);
}

}  // namespace gradrail::ps
