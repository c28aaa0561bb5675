#include "base/output_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>

#include "base/file_descriptor.h"
#include "fmt/format.h"

namespace gradrail {
namespace {

absl::Status unusable(const std::string& path, int error) {
  const std::string text = fmt::format("{}: cannot be written: {}; name a file in a folder that this user can write to",
                                       path, error == EISDIR ? "it is a folder" : std::strerror(error));
  const bool is_full = error == ENOSPC || error == EDQUOT;
  return is_full ? absl::ResourceExhaustedError(text) : absl::FailedPreconditionError(text);
}

/// Opens an existing file without a change of it.
absl::Status try_existing(const std::string& path) {
  // A pipe without a reader refuses this open alone.
  const FileDescriptor file(open(path.c_str(), O_WRONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC));
  return file || errno == ENXIO ? absl::OkStatus() : unusable(path, errno);
}

/// `shown` is the path of the user.
absl::Status try_new(const std::string& path, const std::string& shown) {
  const FileDescriptor file(open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600));
  if (file) return unlink(path.c_str()) == 0 ? absl::OkStatus() : unusable(shown, errno);
  return errno == EEXIST ? try_existing(path) : unusable(shown, errno);
}

}  // namespace

absl::Status check_output_file(const std::string& path, OutputKind kind) {
  struct stat info = {};
  const bool exists = stat(path.c_str(), &info) == 0;
  if (!exists && errno != ENOENT) return unusable(path, errno);
  if (exists ? S_ISDIR(info.st_mode) : path.ends_with('/')) return unusable(path, EISDIR);
  if (kind == OutputKind::replaced) {
    if (exists && !S_ISREG(info.st_mode))
      return absl::FailedPreconditionError(fmt::format("{}: it is not a regular file; name another file", path));
    return try_new(path + ".tmp", path);
  }
  if (exists) return try_existing(path);
  // A link to a file that does not exist: the write makes that file.
  std::error_code is_no_link;
  const std::filesystem::path target = std::filesystem::read_symlink(path, is_no_link);
  return try_new(is_no_link ? path : (std::filesystem::path(path).parent_path() / target).string(), path);
}

absl::Status check_output_folder(const std::string& folder) {
  return try_new(fmt::format("{}/.gradrail-check-{}", folder, getpid()), folder);
}

}  // namespace gradrail
