#include "gpu/driver/library.h"

#include <dlfcn.h>
#include <glob.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "absl/strings/str_split.h"
#include "base/read_file.h"
#include "base/status.h"
#include "fmt/format.h"
#include "fmt/ranges.h"

namespace gradrail::gpu {
namespace {

std::string variable(const char* name) {
  const char* const value = std::getenv(name);
  return value == nullptr ? "" : value;
}

/// Adds the folders that match, the highest version first.
void add_matches(const std::string& pattern, std::vector<std::string>& folders) {
  glob_t found = {};
  std::vector<std::string> matches;
  if (glob(pattern.c_str(), GLOB_ONLYDIR, nullptr, &found) == 0)
    matches.assign(found.gl_pathv, found.gl_pathv + found.gl_pathc);
  globfree(&found);
  std::sort(matches.begin(), matches.end(),
            [](const std::string& a, const std::string& b) { return strverscmp(a.c_str(), b.c_str()) > 0; });
  folders.insert(folders.end(), matches.begin(), matches.end());
}

/// The environment of the first python3 on the path, which need not be activated; "": none.
std::string python_prefix() {
  const std::vector<std::string> folders = absl::StrSplit(variable("PATH"), ':', absl::SkipEmpty());
  for (const std::string& folder : folders)
    if (access((folder + "/python3").c_str(), X_OK) == 0) return folder + "/..";
  return "";
}

/// The folders that are searched; those of CUDA and Python with wildcards.
struct Places {
  std::vector<std::string> folders;
  std::vector<std::string> patterns;
};

Places places() {
  const std::string given = variable("GRADRAIL_CUDA_LIBRARIES");
  if (!given.empty()) return {.folders = absl::StrSplit(given, ':', absl::SkipEmpty()), .patterns = {}};
  Places all;
  if (const std::string home = variable("CUDA_HOME"); !home.empty()) all.folders.push_back(home + "/lib64");
  all.patterns.emplace_back("/usr/local/cuda*/lib64");
  for (const std::string& prefix : {variable("VIRTUAL_ENV"), variable("CONDA_PREFIX"), python_prefix()})
    if (!prefix.empty()) all.patterns.push_back(prefix + "/lib/python3*/site-packages/nvidia/*/lib");
  if (const std::string home = variable("HOME"); !home.empty())
    all.patterns.push_back(home + "/.local/lib/python3*/site-packages/nvidia/*/lib");
  all.patterns.emplace_back("/usr/local/lib/python3*/dist-packages/nvidia/*/lib");
  return all;
}

}  // namespace

absl::StatusOr<Library> Library::open(absl::Span<const char* const> names) {
  // The handle is never closed: static tables hold functions of the library until the process ends.
  std::vector<std::string> reasons;
  for (const char* name : names) {
    // RTLD_LOCAL: a program that links another version of the same library still uses its own version.
    if (void* handle = dlopen(name, RTLD_NOW | RTLD_LOCAL)) return Library(handle, name);
    // The error lists all reasons: the first is usually "no such file", and a later one is the real obstacle.
    reasons.emplace_back(dlerror());
  }
  return absl::NotFoundError(fmt::format("{}", fmt::join(reasons, "; ")));
}

absl::StatusOr<Library> Library::find(absl::Span<const char* const> names) {
  absl::StatusOr<Library> library = open(names);
  if (library.ok()) return library;
  std::string reasons(message_of(library.status()));
  const Places searched = places();
  std::vector<std::string> folders = searched.folders;
  for (const std::string& pattern : searched.patterns) add_matches(pattern, folders);
  // The loop is over names first: the newest version of all folders, not the first folder with any version.
  for (const char* name : names) {
    for (const std::string& folder : folders) {
      const std::string path = fmt::format("{}/{}", folder, name);
      if (!check_regular_file(path).ok()) continue;  // dlopen() would wait for the writer of a pipe
      library = open({path.c_str()});
      if (library.ok()) return library;
      reasons += fmt::format("; {}", message_of(library.status()));
    }
  }
  std::vector<std::string> names_of_places = searched.folders;
  names_of_places.insert(names_of_places.end(), searched.patterns.begin(), searched.patterns.end());
  return absl::NotFoundError(fmt::format("{}; searched {}", reasons, fmt::join(names_of_places, ", ")));
}

void* Library::symbol(const char* name) const { return dlsym(handle_, name); }

}  // namespace gradrail::gpu
