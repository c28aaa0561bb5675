#include "tools/doctor/facts/library_files.h"

#include "fmt/format.h"

namespace gradrail::tools::doctor {

std::vector<std::string> library_folders(Tree& tree) {
  std::vector<std::string> folders;
  for (const char* folder : {"/usr/local/lib", "/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu", "/usr/lib64",
                             "/usr/lib", "/usr/local/cuda/lib64", "/usr/local/cuda/targets/x86_64-linux/lib"}) {
    if (tree.is_folder(folder)) folders.emplace_back(folder);
  }
  return folders;
}

std::string find_library(Tree& tree, const std::string& name) {
  for (const std::string& folder : library_folders(tree))
    if (std::string path = fmt::format("{}/{}", folder, name); tree.exists(path)) return path;
  return "";
}

std::string find_plugin(Tree& tree, const std::string& folder, const std::string& prefix) {
  for (const std::string& each : library_folders(tree)) {
    const std::string place = fmt::format("{}/{}", each, folder);
    for (const std::string& name : tree.names(place))
      if (name.compare(0, prefix.size(), prefix) == 0) return fmt::format("{}/{}", place, name);
  }
  return "";
}

std::string library_version(Tree& tree, const std::string& path) {
  const auto behind_so = [](const std::string& name) {
    const size_t at = name.find(".so.");
    return at == std::string::npos ? std::string() : name.substr(at + 4);
  };
  const std::string own = behind_so(path.substr(path.rfind('/') + 1));
  // "libucp.so.0" is a link to "libucp.so.0.0.0": the longer name has the version.
  const std::string target = behind_so(tree.link_name(path));
  return target.size() > own.size() ? target : own;
}

}  // namespace gradrail::tools::doctor
