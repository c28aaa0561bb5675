#include "base/read_file.h"

#include <fcntl.h>
#include <sys/stat.h>

#include <cerrno>
#include <optional>

#include "base/file_descriptor.h"
#include "fmt/format.h"

namespace gradrail {

absl::StatusOr<std::string> read_file(const std::string& path, size_t max_bytes, FileKind kind) {
  const int wait = kind == FileKind::regular ? O_NONBLOCK : 0;  // to open a pipe would wait for its writer
  const FileDescriptor file(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOCTTY | wait));
  struct stat facts {};
  if (!file || fstat(file.get(), &facts) != 0)
    return absl::ErrnoToStatus(errno, fmt::format("{}: cannot be read", path));
  if (S_ISDIR(facts.st_mode) || (kind == FileKind::regular && !S_ISREG(facts.st_mode)))
    return absl::InvalidArgumentError(fmt::format("{}: is no regular file", path));
  const auto too_long = absl::InvalidArgumentError(fmt::format("{}: is longer than {} bytes", path, max_bytes));
  if (static_cast<size_t>(facts.st_size) > max_bytes) return too_long;
  std::optional<std::string> text = read_up_to(file.get(), max_bytes + 1);
  if (!text) return absl::ErrnoToStatus(errno, fmt::format("{}: cannot be read", path));
  if (text->size() > max_bytes) return too_long;
  return *std::move(text);
}

}  // namespace gradrail
