// Searches all states of small clusters. See tests/ps/prove/README.md.
#include <cstdint>
#include <cstdio>
#include <string>
#include <string_view>
#include <vector>

#include "fmt/format.h"
#include "tests/ps/prove/config.h"
#include "tests/ps/prove/search.h"

namespace gradrail::ps::prove {
namespace {

constexpr uint64_t kStateLimit = 100'000'000;
constexpr int kUsageError = 2;

/// False: an invariant is broken.
bool run(const Config& config, uint64_t state_limit) {
  const Result result = search(config, state_limit);
  fmt::print("{:24} {:>10} states {:>10} transitions {:>4} deep {:7.1f} s  {}{}\n", config.name, result.states,
             result.transitions, result.depth, result.seconds, describe(config),
             result.is_complete ? "" : "  INCOMPLETE: the limit of states was reached");
  if (!result.violation.empty()) {
    for (const Event& event : result.path) fmt::print("    {}\n", describe(event));
    fmt::print("violation: {}\n", result.violation);
  }
  std::fflush(stdout);
  return result.violation.empty() && result.is_complete;
}

int run_all(const std::vector<Config>& configs, std::string_view only, uint64_t state_limit) {
  uint32_t failed = 0, count = 0;
  for (const Config& config : configs) {
    if (config.name.find(only) == std::string::npos) continue;
    ++count;
    failed += run(config, state_limit) ? 0 : 1;
    if (failed > 0) break;  // later configurations would show the same cause
  }
  fmt::print("{} of {} configurations hold\n", count - failed, count);
  return failed == 0 && count > 0 ? 0 : 1;
}

}  // namespace
}  // namespace gradrail::ps::prove

int main(int argc, char** argv) {
  using namespace gradrail::ps::prove;
  const std::string_view set = argc > 1 ? argv[1] : "";
  if (argc > 3 || (set != "quick" && set != "full")) {
    fmt::print(stderr, "usage: prove quick|full [PART_OF_A_NAME]: searches all states of small clusters\n");
    return kUsageError;
  }
  return run_all(set == "quick" ? quick_configs() : full_configs(), argc > 2 ? argv[2] : "", kStateLimit);
}
