#include "transport/rdma_devices.h"

#include <algorithm>
#include <cctype>
#include <filesystem>
#include <fstream>
#include <vector>

#include "fmt/format.h"
#include "fmt/ranges.h"

namespace gradrail::transport {
namespace {

namespace fs = std::filesystem;

std::vector<fs::path> entries(const fs::path& folder) {
  std::vector<fs::path> found;
  std::error_code error;
  for (fs::directory_iterator each(folder, error), end; !error && each != end; each.increment(error)) {
    found.push_back(each->path());
  }
  // The kernel lists a folder in no defined order, but messages should not change from call to call.
  std::sort(found.begin(), found.end());
  return found;
}

std::string first_line(const fs::path& file) {
  std::string line;
  std::ifstream stream(file);
  std::getline(stream, line);
  return line;
}

/// "4: ACTIVE" is "active" to people.
std::string state_of(const fs::path& port) {
  std::string state = first_line(port / "state");
  state.erase(0, std::min(state.size(), state.find(": ") == std::string::npos ? 0 : state.find(": ") + 2));
  std::transform(state.begin(), state.end(), state.begin(), [](unsigned char c) { return std::tolower(c); });
  return state.empty() ? "in an unknown state" : state;
}

/// A device that is being removed stays in the kernel's list until its last user has closed it, but opens no more.
bool can_be_opened(const fs::path& device, const std::string& root) {
  const std::vector<fs::path> verbs = entries(fs::path(root) / "class/infiniband_verbs");
  return std::any_of(verbs.begin(), verbs.end(),
                     [&](const fs::path& each) { return first_line(each / "ibdev") == device.filename().string(); });
}

}  // namespace

std::string describe_rdma_devices(const std::string& root) {
  std::vector<std::string> found;
  for (const fs::path& device : entries(fs::path(root) / "class/infiniband")) {
    const std::string name = device.filename().string();
    if (!can_be_opened(device, root)) {
      found.push_back(fmt::format("{} is being removed, or ib_uverbs is not loaded", name));
      continue;
    }
    for (const fs::path& port : entries(device / "ports")) {
      found.push_back(fmt::format("{} port {} is {}", name, port.filename().string(), state_of(port)));
    }
  }
  if (found.empty()) return "no RDMA device on this host: nothing in /sys/class/infiniband";
  return fmt::format("{}", fmt::join(found, ", "));
}

}  // namespace gradrail::transport
