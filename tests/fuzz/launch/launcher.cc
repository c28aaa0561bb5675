// The environment of a launcher: an input has a variable in each line, NAME=VALUE.
#include "launch/launcher/launcher.h"

#include <map>
#include <string>

#include "base/check.h"
#include "gradrail/cluster.h"
#include "tests/fuzz/fuzz.h"

namespace gradrail::launch {
namespace {

std::map<std::string, std::string> variables_of(std::string_view text) {
  std::map<std::string, std::string> variables;
  while (!text.empty()) {
    const std::string_view line = text.substr(0, text.find('\n'));
    text.remove_prefix(std::min(text.size(), line.size() + 1));
    const size_t equals = line.find('=');
    if (equals == std::string_view::npos) continue;
    variables.emplace(line.substr(0, equals), line.substr(equals + 1));
  }
  return variables;
}

void check_launch(const Launch& launch) {
  GRADRAIL_CHECK(launch.size > 1 && launch.size <= kMaxWorkers + 64);
  GRADRAIL_CHECK(!launch.job.empty());
  GRADRAIL_CHECK(launch.rank < launch.size);
  // The first rank listens there, and the others connect to it.
  GRADRAIL_CHECK(launch.rendezvous.empty() || parse_host_port(launch.rendezvous).ok());
}

}  // namespace
}  // namespace gradrail::launch

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t bytes) {
  using namespace gradrail::launch;
  const std::map<std::string, std::string> variables = variables_of(gradrail::fuzz::text_of(data, bytes));
  const auto variable = [&](const char* name) {
    const auto found = variables.find(name);
    return found == variables.end() ? nullptr : found->second.c_str();
  };
  // The server's answers come from the input as well.
  const auto query = [&]() -> absl::StatusOr<PmixJob> {
    const char* const host = variable("first_host");
    if (host == nullptr) return absl::UnavailableError("no server");
    return PmixJob{.size = static_cast<uint32_t>(bytes), .local_size = 2, .first_host = host};
  };
  const absl::StatusOr<std::optional<Launch>> launch = read_launcher(variable, query);
  if (!launch.ok()) {
    gradrail::fuzz::check_refusal(launch.status(), absl::StatusCode::kInvalidArgument, "");
  } else if (launch->has_value()) {
    check_launch(**launch);
  }
  return 0;
}
