#include "transport/rdma_devices.h"

#include <algorithm>
#include <cctype>
#include <filesystem>
#include <vector>

#include "base/read_file.h"
#include "fmt/format.h"
#include "fmt/ranges.h"

namespace gradrail::transport {
namespace {

namespace fs = std::filesystem;

/// "4: ACTIVE" is "active" to people.
std::string state_of(const fs::path& port) {
  std::string state = first_line(port / "state");
  state.erase(0, std::min(state.size(), state.find(": ") == std::string::npos ? 0 : state.find(": ") + 2));
  std::transform(state.begin(), state.end(), state.begin(), [](unsigned char c) { return std::tolower(c); });
  return state.empty() ? "in an unknown state" : state;
}

/// A device that is being removed stays in the kernel's list until its last user has closed it, but opens no more.
bool can_be_opened(const std::string& device, const std::string& root) {
  const fs::path folder = fs::path(root) / "class/infiniband_verbs";
  const std::vector<std::string> verbs = names_in(folder);
  return std::any_of(verbs.begin(), verbs.end(),
                     [&](const std::string& each) { return first_line(folder / each / "ibdev") == device; });
}

}  // namespace

std::string describe_rdma_devices(const std::string& root) {
  std::vector<std::string> found;
  const fs::path devices = fs::path(root) / "class/infiniband";
  for (const std::string& name : names_in(devices)) {
    if (!can_be_opened(name, root)) {
      found.push_back(fmt::format("{} is being removed, or ib_uverbs is not loaded", name));
      continue;
    }
    const fs::path ports = devices / name / "ports";
    for (const std::string& port : names_in(ports)) {
      found.push_back(fmt::format("{} port {} is {}", name, port, state_of(ports / port)));
    }
  }
  if (found.empty()) return "no RDMA device on this host: nothing in /sys/class/infiniband";
  return fmt::format("{}", fmt::join(found, ", "));
}

}  // namespace gradrail::transport
