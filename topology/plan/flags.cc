#include <algorithm>
#include <charconv>
#include <set>

#include "fmt/format.h"
#include "topology/plan/available_resources.h"

namespace gradrail::topology::planning {
namespace {

/// People write 03:00.0 where there is but one domain, and hexadecimal digits in either case.
bool is_address(const std::string& word, const PciAddress& address) {
  std::string lower = word;
  std::transform(lower.begin(), lower.end(), lower.begin(), [](unsigned char c) { return std::tolower(c); });
  const std::string full = address.to_string();
  return lower == full || (address.domain == 0 && lower == full.substr(full.find(':') + 1));
}

bool names_gpu(const std::string& word, const Gpu& gpu) {
  return word == gpu.name || word == std::to_string(gpu.index) || (!gpu.uuid.empty() && word == gpu.uuid) ||
         is_address(word, gpu.place.address);
}

bool names_nic(const std::string& word, const Nic& nic) {
  return word == nic.name || (!nic.interface.empty() && word == nic.interface) || is_address(word, nic.place.address);
}

std::string gpus_there_are(const Machine& machine) {
  const std::vector<Gpu>& gpus = machine.gpus;
  if (gpus.empty()) return "this machine has no GPU";
  if (gpus.size() == 1) return fmt::format("this machine has one GPU, {} ({})", gpus[0].index, gpus[0].name);
  // CUDA_VISIBLE_DEVICES can leave gaps: a range would name GPUs that do not exist.
  const auto gap =
      std::adjacent_find(gpus.begin(), gpus.end(), [](const Gpu& a, const Gpu& b) { return b.index != a.index + 1; });
  if (gap == gpus.end()) {
    return fmt::format("this machine has {} GPUs, {} to {}", gpus.size(), gpus.front().index, gpus.back().index);
  }
  std::string names;
  for (const Gpu& gpu : gpus) names += fmt::format("{}{} ({})", names.empty() ? "" : ", ", gpu.index, gpu.name);
  return fmt::format("this machine has {}", names);
}

std::string nics_there_are(const Machine& machine) {
  if (machine.nics.empty()) return "this machine has no NIC";
  std::string names;
  for (const Nic& nic : machine.nics) names += (names.empty() ? "" : ", ") + nic.name;
  return fmt::format("this machine has {}", names);
}

template <class Device, class Names, class There>
absl::StatusOr<std::vector<int>> find(const std::vector<Device>& devices, const std::vector<std::string>& words,
                                      const char* flag, Names names, There there) {
  std::vector<int> found;
  for (const std::string& word : words) {
    const auto device =
        std::find_if(devices.begin(), devices.end(), [&](const Device& each) { return names(word, each); });
    if (device == devices.end()) return absl::InvalidArgumentError(fmt::format("{} {}: {}", flag, word, there()));
    found.push_back(static_cast<int>(device - devices.begin()));
  }
  return found;
}

}  // namespace

absl::StatusOr<std::vector<int>> find_gpus(const Machine& machine, const std::vector<std::string>& words) {
  return find(machine.gpus, words, "--gpu", names_gpu, [&] { return gpus_there_are(machine); });
}

absl::StatusOr<std::vector<int>> find_nics(const Machine& machine, const std::vector<std::string>& words) {
  absl::StatusOr<std::vector<int>> found =
      find(machine.nics, words, "--nic", names_nic, [&] { return nics_there_are(machine); });
  // A GPU may be named twice, which shares it. All tasks share a NIC, so that a repetition is a mistake.
  std::set<int> seen;
  for (size_t i = 0; found.ok() && i < found->size(); ++i) {
    if (seen.insert((*found)[i]).second) continue;
    return absl::InvalidArgumentError(
        fmt::format("--nic {}: {} is named twice", words[i], machine.nics[(*found)[i]].name));
  }
  return found;
}

}  // namespace gradrail::topology::planning
