#include "base/file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

#include "base/check.h"
#include "base/failpoint.h"
#include "base/read_file.h"
#include "base/status.h"
#include "fmt/format.h"

namespace gradrail {
namespace {

absl::Status failed(std::string_view call, std::string_view kind, const std::string& path, int error) {
  const std::string what = fmt::format("{} {}: {}", kind, path, call);
  // EFBIG is RLIMIT_FSIZE or the file system's bound: for the user it is a lack of room, as ENOSPC is.
  if (error != EFBIG) return absl::ErrnoToStatus(error, what);
  return absl::ResourceExhaustedError(fmt::format("{}: File too large (`ulimit -f`?)", what));
}

/// Syncs the folder of a file: without this a crash may lose the rename although the bytes are on disk.
absl::Status sync_folder_of(std::string_view kind, const std::string& path) {
  const size_t slash = path.rfind('/');
  const std::string folder = slash == std::string::npos ? "." : path.substr(0, slash + 1);
  const FileDescriptor descriptor(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!descriptor) return failed("open its folder", kind, path, errno);
  return ::fsync(descriptor.get()) == 0 ? absl::OkStatus() : failed("fsync of its folder", kind, path, errno);
}

}  // namespace

absl::StatusOr<InputFile> InputFile::open(const std::string& path, std::string_view kind) {
  absl::StatusOr<FileDescriptor> descriptor = open_regular_file(path, O_RDONLY);
  if (!descriptor.ok())
    return absl::Status(descriptor.status().code(), fmt::format("{} {}", kind, message_of(descriptor.status())));
  struct stat info = {};
  if (::fstat(descriptor->get(), &info) != 0) return failed("fstat", kind, path, errno);
  return InputFile(path, kind, *std::move(descriptor), static_cast<uint64_t>(info.st_size));
}

InputFile::InputFile(std::string path, std::string_view kind, FileDescriptor descriptor, uint64_t bytes)
    : path_(std::move(path)), kind_(kind), descriptor_(std::move(descriptor)), bytes_(bytes) {}

absl::Status InputFile::read(void* data, size_t bytes) {
  auto* position = static_cast<char*>(data);
  while (bytes > 0) {
    const ssize_t got = ::read(descriptor_.get(), position, bytes);
    if (got < 0 && errno == EINTR) continue;
    // DATA_LOSS: a restore then continues with the set before this one.
    if (got < 0 && errno == EIO) return absl::DataLossError(fmt::format("{} {}: read: the disk failed", kind_, path_));
    if (got < 0) return failed("read", kind_, path_, errno);
    if (got == 0) return absl::DataLossError(fmt::format("{} {}: became shorter while it was read", kind_, path_));
    position += got;
    bytes -= static_cast<size_t>(got);
  }
  return absl::OkStatus();
}

absl::StatusOr<ReplacementFile> ReplacementFile::create(const std::string& path, std::string_view kind) {
  // The check is at the start: commit() would fail after the work for the file, or replace a device such as /dev/null.
  if (const absl::Status replaced = check_regular_file(path); absl::IsInvalidArgument(replaced))
    return absl::InvalidArgumentError(fmt::format("{} {}", kind, message_of(replaced)));
  const std::string temporary_path = path + ".tmp";
  failpoint("create");
  // Replaces what has this name, such as the file of an earlier crash: it may be a link to another file, or a pipe.
  constexpr int kNew = O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC;
  FileDescriptor descriptor(::open(temporary_path.c_str(), kNew, 0644));
  if (!descriptor && errno == EEXIST) {
    if (::unlink(temporary_path.c_str()) != 0 && errno != ENOENT)
      return failed("create: a file of this name cannot be removed", kind, temporary_path, errno);
    descriptor.reset(::open(temporary_path.c_str(), kNew, 0644));
  }
  if (!descriptor) return failed("create", kind, temporary_path, errno);
  failpoint("created");
  return ReplacementFile(path, kind, std::move(descriptor));
}

ReplacementFile::ReplacementFile(std::string path, std::string_view kind, FileDescriptor descriptor)
    : path_(std::move(path)), kind_(kind), temporary_path_(path_ + ".tmp"), descriptor_(std::move(descriptor)) {}

ReplacementFile::ReplacementFile(ReplacementFile&& other) noexcept
    : path_(std::move(other.path_)),
      kind_(std::move(other.kind_)),
      // Emptied, so that only one of the two objects removes the file.
      temporary_path_(std::exchange(other.temporary_path_, {})),
      descriptor_(std::move(other.descriptor_)) {}

ReplacementFile::~ReplacementFile() {
  if (!temporary_path_.empty()) ::unlink(temporary_path_.c_str());
}

absl::Status ReplacementFile::write(const void* data, size_t bytes) {
  GRADRAIL_CHECK(descriptor_.get() >= 0);
  failpoint("write");
  const bool written = write_all(descriptor_.get(), {static_cast<const char*>(data), bytes});
  return written ? absl::OkStatus() : failed("write", kind_, temporary_path_, errno);
}

absl::Status ReplacementFile::commit() {
  GRADRAIL_CHECK(descriptor_.get() >= 0);
  failpoint("written");
  // The sync precedes the rename: a file system may write the name to disk before the bytes.
  if (::fsync(descriptor_.get()) != 0) return failed("fsync", kind_, temporary_path_, errno);
  failpoint("synced");
  // NFS and quotas may report a failed write only here.
  if (::close(descriptor_.release()) != 0) return failed("close", kind_, temporary_path_, errno);
  failpoint("closed");
  if (::rename(temporary_path_.c_str(), path_.c_str()) != 0) return failed("rename to it", kind_, path_, errno);
  failpoint("renamed");
  // The destructor must not remove the file any more.
  temporary_path_.clear();
  GRADRAIL_RETURN_IF_ERROR(sync_folder_of(kind_, path_));
  failpoint("committed");
  return absl::OkStatus();
}

}  // namespace gradrail
