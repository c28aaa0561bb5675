#include "transport/plugin_loader.h"

#include <dlfcn.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <map>
#include <optional>
#include <set>
#include <system_error>

#include "absl/base/thread_annotations.h"
#include "base/mutex.h"
#include "base/read_file.h"
#include "base/status.h"
#include "fmt/format.h"
#include "fmt/ranges.h"
#include "transport/builtin_plugin.h"
#include "transport/c_plugin/context.h"
#include "transport/c_plugin/table.h"

namespace gradrail::transport {
namespace {

constexpr std::string_view kPrefix = "libgradrail_transport_";
constexpr std::string_view kSuffix = ".so";

/// Prefix of the symbol of a third party's table. The version follows: gradrail_transport_v1.
constexpr std::string_view kTablePrefix = "gradrail_transport_v";
constexpr int kTableVersion = 1;
constexpr int kMaxProbedVersion = 99;  ///< a refusal names the version of a plug-in up to here

// Global, because dlopen() has one state per process: a plug-in is loaded once and stays. A program that uses the C
// library has no object of main() to pass.
Mutex mutex;
std::string chosen_folder ABSL_GUARDED_BY(mutex);
std::map<std::string, absl::StatusOr<Plugin>, std::less<>> loaded ABSL_GUARDED_BY(mutex);

/// Each user that may change the file, or replace it, could run code in this process.
absl::Status check_owner(const std::string& path) {
  struct stat info {};
  if (stat(path.c_str(), &info) != 0) {
    return absl::NotFoundError(fmt::format("{}: {}", path, std::strerror(errno)));
  }
  if (info.st_uid != 0 && info.st_uid != geteuid()) {
    return absl::FailedPreconditionError(
        fmt::format("{} belongs to user {}, which is neither root nor this user: code is loaded from it (chown it)",
                    path, info.st_uid));
  }
  // A group of one's own is common (umask 002), but its members are not known here: the rule stays simple.
  if ((info.st_mode & (S_IWGRP | S_IWOTH)) == 0) return absl::OkStatus();
  return absl::FailedPreconditionError(
      fmt::format("{} is writable by other users: code is loaded from it (chmod go-w {})", path, path));
}

absl::Status check_place(const std::string& folder) {
  if (folder.empty() || folder[0] != '/') {
    return absl::InvalidArgumentError(fmt::format("plug-in folder '{}': give the absolute path", folder));
  }
  std::error_code error;
  if (!std::filesystem::is_directory(folder, error)) {
    return absl::InvalidArgumentError(fmt::format("plug-in folder {}: there is no such folder", folder));
  }
  return absl::OkStatus();
}

absl::Status check_folder(const std::string& folder) {
  GRADRAIL_RETURN_IF_ERROR(check_place(folder));
  const absl::Status owner = check_owner(folder);
  return owner.ok() ? owner : absl::InvalidArgumentError(fmt::format("plug-in folder {}", message_of(owner)));
}

/// The folder of libgradrail.so; "" where this code is part of a program. Another file name is not trusted: for code of
/// a program, dladdr() gives argv[0].
std::string library_folder() {
  Dl_info info{};
  if (dladdr(reinterpret_cast<const void*>(&library_folder), &info) == 0 || info.dli_fname == nullptr) return "";
  const std::filesystem::path file = info.dli_fname;
  if (!file.is_absolute() || !file.filename().string().starts_with("libgradrail.so")) return "";
  return file.parent_path().string();
}

/// "" if the variable is not set.
std::string folder_of_environment() {
  const char* const folder = std::getenv("GRADRAIL_PLUGIN_DIR");
  return folder == nullptr ? "" : folder;
}

/// The folder of set_plugin_dir() or of the environment, "" without.
std::string named_folder() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex) {
  return chosen_folder.empty() ? folder_of_environment() : chosen_folder;
}

std::vector<std::string> folders_locked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex) {
  std::vector<std::string> folders;
  if (const std::string named = named_folder(); !named.empty()) folders.push_back(named);
  if (const std::string library = library_folder(); !library.empty()) folders.push_back(library + "/gradrail");
  if (const std::string own = program_folder().string(); !own.empty()) {
    folders.push_back(own);
    folders.push_back((std::filesystem::path(own).parent_path() / "lib/gradrail").string());
  }
  folders.emplace_back(GRADRAIL_INSTALLED_PLUGINS);
  // lib/gradrail beside an installed program is the installed folder; an error names each folder once.
  std::set<std::string> seen;
  std::erase_if(folders, [&](const std::string& folder) { return !seen.insert(folder).second; });
  return folders;
}

absl::StatusOr<Plugin> read_builtin(const std::string& path, const BuiltinPlugin* plugin) {
  if (plugin == nullptr)
    return absl::FailedPreconditionError(fmt::format("{}: its entry point returns no plug-in", path));
  // First, because another version may have another layout behind `build`.
  if (plugin->version != kBuiltinPluginVersion) {
    return absl::FailedPreconditionError(
        fmt::format("{} has version {} of the built-in interface, this program {}: "
                    "install program and plug-ins of one build",
                    path, plugin->version, kBuiltinPluginVersion));
  }
  if (std::string_view(plugin->build) != kBuiltinPluginBuild) {
    return absl::FailedPreconditionError(
        fmt::format("{} was built with {}, this program with {}: install program and plug-ins of one build", path,
                    plugin->build, kBuiltinPluginBuild));
  }
  plugin->send_log_to(own_log());
  return Plugin{plugin->library, plugin->open};
}

absl::StatusOr<Plugin> read_table(std::string_view name, const std::string& path,
                                  const gradrail_transport_table& exported) {
  GRADRAIL_ASSIGN_OR_RETURN(c_plugin::Table read, c_plugin::Table::read(name, path, exported));
  const auto table = std::make_shared<const c_plugin::Table>(std::move(read));  // contexts refer to it
  return Plugin{table->library(), [table](const OpenOptions& options) { return c_plugin::open(*table, options); }};
}

absl::Status no_supported_version(const std::string& path, void* object) {
  for (int version = 0; version <= kMaxProbedVersion; ++version) {
    if (dlsym(object, fmt::format("{}{}", kTablePrefix, version).c_str()) == nullptr) continue;
    return absl::FailedPreconditionError(fmt::format(
        "{} has version {} of the plug-in interface, this program supports version {}: install a build of the "
        "plug-in for version {}, or a gradrail that supports version {}",
        path, version, kTableVersion, kTableVersion, version));
  }
  return absl::FailedPreconditionError(fmt::format(
      "{} is not a transport plug-in: it exports no {}{} (gradrail/transport.h)", path, kTablePrefix, kTableVersion));
}

absl::StatusOr<Plugin> load_file(std::string_view name, const std::string& path) {
  GRADRAIL_RETURN_IF_ERROR(check_regular_file(path));  // dlopen() would wait for the writer of a pipe
  // Now, not at the first call: a missing library is a reason here and a crash later. Local: two plug-ins may bring
  // symbols of the same name.
  void* object = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (object == nullptr) return absl::FailedPreconditionError(dlerror());
  const void* table = dlsym(object, fmt::format("{}{}", kTablePrefix, kTableVersion).c_str());
  if (table != nullptr) return read_table(name, path, *static_cast<const gradrail_transport_table*>(table));
  const auto entry = reinterpret_cast<BuiltinPluginEntry>(dlsym(object, kBuiltinPluginEntry));
  if (entry != nullptr) return read_builtin(path, entry());
  return no_supported_version(path, object);
}

absl::StatusOr<Plugin> find_and_load(std::string_view name) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex) {
  const std::string file = fmt::format("{}{}{}", kPrefix, name, kSuffix);
  const std::vector<std::string> folders = folders_locked();
  for (const std::string& folder : folders) {
    const std::string path = fmt::format("{}/{}", folder, file);
    // access() would ignore the capabilities of the process, such as the right to search private folders.
    std::error_code ignored;
    if (!std::filesystem::exists(path, ignored)) continue;
    // A user with write access beside the program could as well replace the program.
    if (folder == named_folder()) {
      GRADRAIL_RETURN_IF_ERROR(check_folder(folder));
      GRADRAIL_RETURN_IF_ERROR(check_owner(path));
    }
    return load_file(name, path);
  }
  return absl::NotFoundError(fmt::format("plug-in {} not found in {}", file, fmt::join(folders, ", ")));
}

}  // namespace

std::vector<std::string> plugin_folders() {
  const MutexLock lock(mutex);
  return folders_locked();
}

absl::Status set_plugin_dir(const std::string& folder) {
  GRADRAIL_RETURN_IF_ERROR(check_folder(folder));
  const MutexLock lock(mutex);
  chosen_folder = folder;
  return absl::OkStatus();
}

absl::Status check_plugin_variable() {
  const std::string folder = folder_of_environment();
  if (folder.empty()) return absl::OkStatus();
  const absl::Status place = check_place(folder);
  return place.ok() ? place : absl::InvalidArgumentError(fmt::format("GRADRAIL_PLUGIN_DIR: {}", message_of(place)));
}

std::vector<std::string> plugin_names() {
  std::set<std::string> names;
  for (const std::string& folder : plugin_folders()) {
    std::error_code error;
    // Most of these folders are absent on a host: that is not an error.
    for (const auto& entry : std::filesystem::directory_iterator(folder, error)) {
      const std::string file = entry.path().filename().string();
      if (file.size() <= kPrefix.size() + kSuffix.size() || !file.starts_with(kPrefix) || !file.ends_with(kSuffix))
        continue;
      names.insert(file.substr(kPrefix.size(), file.size() - kPrefix.size() - kSuffix.size()));
    }
  }
  return {names.begin(), names.end()};
}

absl::StatusOr<const Plugin*> load_plugin(std::string_view name) {
  const MutexLock lock(mutex);
  auto known = loaded.find(name);
  // Failures are stored as well: every caller of this process gets the same answer.
  if (known == loaded.end()) known = loaded.emplace(std::string(name), find_and_load(name)).first;
  if (!known->second.ok()) return known->second.status();
  return &*known->second;
}

}  // namespace gradrail::transport
