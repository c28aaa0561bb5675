#include "tools/train/renamed_flags.h"

#include <algorithm>
#include <array>
#include <string_view>

#include "fmt/format.h"

namespace gradrail::tools {
namespace {

struct RenamedFlag {
  std::string_view old_name;  ///< with underscores; dashes are accepted as well
  std::string_view new_name;
};

// The program keeps no aliases: an old script fails at once, with a hint.
constexpr std::array<RenamedFlag, 5> kRenamedFlags = {{
    {"--join_timeout_s", "--join-timeout"},
    {"--meet", "--rendezvous tcp://HOST:PORT"},
    {"--rejoin_secs", "--rejoin-timeout"},
    {"--replicas", "--backup-ps"},
    {"--silence_limit_s", "--heartbeat-timeout"},
}};

}  // namespace

std::vector<std::string> hints_for_renamed_flags(absl::Span<char* const> arguments) {
  std::vector<std::string> hints;
  for (const char* argument : arguments) {
    const std::string_view given(argument);
    if (!given.starts_with("--")) continue;
    // "--flag=value" and "--flag value" are both common.
    std::string name(given.substr(0, given.find('=')));
    std::replace(name.begin() + 2, name.end(), '-', '_');
    for (const RenamedFlag& flag : kRenamedFlags) {
      if (name == flag.old_name) hints.push_back(fmt::format("{} is now {}", flag.old_name, flag.new_name));
    }
  }
  return hints;
}

}  // namespace gradrail::tools
