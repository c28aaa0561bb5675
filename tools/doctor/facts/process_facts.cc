#include "tools/doctor/facts/process_facts.h"

#include "fmt/format.h"
#include "fmt/ranges.h"
#include "tools/doctor/text.h"

namespace gradrail::tools::doctor {
namespace {

/// The value behind "Uid:" in /proc/self/status.
std::string status_field(Tree& tree, std::string_view name) {
  for (const std::string& line : lines_of(tree.read("/proc/self/status").text))
    if (line.compare(0, name.size(), name) == 0) return std::string(trimmed(line.substr(name.size())));
  return "";
}

}  // namespace

absl::StatusOr<MemlockLimit> memlock_limit(Tree& tree) {
  constexpr std::string_view kRow = "Max locked memory";
  for (const std::string& line : lines_of(tree.read("/proc/self/limits").text)) {
    if (line.compare(0, kRow.size(), kRow) != 0) continue;
    const std::vector<std::string> words = words_of(line.substr(kRow.size()));
    if (words.empty()) break;
    // The soft limit is the first number, and the one that applies.
    if (words[0] == "unlimited") return MemlockLimit{};
    if (const std::optional<uint64_t> bytes = number_of(words[0])) return MemlockLimit{bytes};
    break;
  }
  return absl::NotFoundError("/proc/self/limits has no number for 'Max locked memory'");
}

bool may_lock_without_limit(Tree& tree) {
  constexpr int kIpcLock = 14;  // linux/capability.h
  const std::optional<uint64_t> capabilities = number_of(status_field(tree, "CapEff:"), 16);
  return capabilities && (*capabilities >> kIpcLock & 1) != 0;
}

std::string describe_user(Tree& tree) {
  const std::vector<std::string> uids = words_of(status_field(tree, "Uid:"));
  const std::vector<std::string> groups = words_of(status_field(tree, "Groups:"));
  // The fields of "Uid:" are real, effective, saved and file system: the kernel checks the effective one.
  return printable(fmt::format("uid {}, groups {}", uids.size() > 1 ? uids[1] : "?", fmt::join(groups, " ")));
}

}  // namespace gradrail::tools::doctor
