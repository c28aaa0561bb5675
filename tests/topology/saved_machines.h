#pragma once

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

namespace gradrail::topology {

/// Files that operators saved on real nodes. They are no part of the repository: GRADRAIL_TOPOLOGIES names their
/// folder.
struct SavedMachine {
  std::string path, xml;
};

inline std::filesystem::path saved_machines_folder() {
  const char* folder = std::getenv("GRADRAIL_TOPOLOGIES");
  return folder != nullptr ? folder : GRADRAIL_SOURCE_DIR "/../shared/data/topologies";
}

inline std::string text_of(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

/// In order of their names; none where there is no such folder.
inline std::vector<SavedMachine> saved_machines() {
  std::vector<SavedMachine> machines;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(saved_machines_folder(), error))
    if (entry.path().extension() == ".xml") machines.push_back({entry.path().string(), text_of(entry.path())});
  std::sort(machines.begin(), machines.end(), [](const auto& a, const auto& b) { return a.path < b.path; });
  return machines;
}

}  // namespace gradrail::topology
