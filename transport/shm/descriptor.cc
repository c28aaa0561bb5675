#include "transport/shm/descriptor.h"

#include <fcntl.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>

#include "base/status.h"
#include "fmt/format.h"
#include "transport/shm/native_error.h"

namespace gradrail::transport::shm {
namespace {

std::string link_of(int fd) { return fmt::format("/proc/self/fd/{}", fd); }

}  // namespace

absl::Status check_usable() {
  const FileDescriptor memory(memfd_create("gradrail-probe", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  const int error = memory ? 0 : errno;
  if (error == EPERM || error == EACCES || error == ENOSYS) {
    return absl::FailedPreconditionError(
        fmt::format("shm: memfd_create: {} (forbidden by seccomp, or by the security profile of the container)",
                    std::strerror(error)));
  }
  if (!memory) return from_errno(error, "memfd_create");
  for (const std::string& path : {std::string("/proc/self/maps"), link_of(memory.get())}) {
    struct stat file {};
    if (stat(path.c_str(), &file) != 0)
      return absl::FailedPreconditionError(fmt::format("shm: {}: {} (is /proc mounted?)", path, std::strerror(errno)));
  }
  return absl::OkStatus();
}

absl::Status check_sealed(int fd, size_t bytes) {
  const int seals = fcntl(fd, F_GET_SEALS);
  if (seals < 0) return absl::InvalidArgumentError("not a memfd");
  // An access behind the end of a file that shrank raises SIGBUS.
  if ((seals & F_SEAL_SHRINK) == 0) return absl::InvalidArgumentError("memfd is not sealed against shrinking");
  struct stat file {};
  if (fstat(fd, &file) != 0) return from_errno(errno, "fstat");
  if (file.st_size < 0 || static_cast<uint64_t>(file.st_size) < bytes) {
    return absl::InvalidArgumentError(fmt::format("memfd holds {} bytes of {}", file.st_size, bytes));
  }
  return absl::OkStatus();
}

absl::StatusOr<Mapping> Mapping::map_sealed(int fd, size_t bytes, Mode mode) {
  const size_t mapped_bytes = std::max<size_t>(bytes, 1);  // mmap refuses 0, and SharedMemory is never smaller
  GRADRAIL_RETURN_IF_ERROR(check_sealed(fd, mapped_bytes));
  const int protection = mode == Mode::read ? PROT_READ : PROT_READ | PROT_WRITE;
  // Populated now, because a page fault in the first exchange costs more than the exchange. An owner that needs the
  // pages on a certain NUMA node touches them before it sends the key.
  void* address = mmap(nullptr, mapped_bytes, protection, MAP_SHARED | MAP_POPULATE, fd, 0);
  if (address == MAP_FAILED) return from_errno(errno, fmt::format("mmap of {} bytes", mapped_bytes));
  Mapping mapping;
  mapping.data_ = static_cast<std::byte*>(address);
  mapping.bytes_ = mapped_bytes;
  return mapping;
}

Mapping::~Mapping() {
  if (data_ != nullptr) munmap(data_, bytes_);
}

absl::StatusOr<FileDescriptor> create_sealed(const char* name, size_t bytes) {
  FileDescriptor file(memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!file) return from_errno(errno, "memfd_create");
  if (ftruncate(file.get(), static_cast<off_t>(bytes)) != 0) return from_errno(errno, "ftruncate");
  // F_SEAL_SEAL: a peer that holds the descriptor can add no seal, such as one against writing.
  if (fcntl(file.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0) return from_errno(errno, "seal");
  return file;
}

absl::StatusOr<FileDescriptor> reopen_read_only(int fd) {
  FileDescriptor file(::open(link_of(fd).c_str(), O_RDONLY | O_CLOEXEC));
  if (!file) return from_errno(errno, "reopen without write permission (is /proc mounted?)");
  return file;
}

absl::StatusOr<FileDescriptor> create_bell() {
  FileDescriptor bell(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!bell) return from_errno(errno, "eventfd");
  return bell;
}

absl::Status check_bell(int fd) {
  // All anonymous inodes look alike to fstat(). The link in /proc names the kind of the descriptor.
  char target[64];
  const ssize_t length = readlink(link_of(fd).c_str(), target, sizeof(target));
  if (length < 0) return from_errno(errno, "readlink in /proc/self/fd (is /proc mounted?)");
  if (std::string_view(target, static_cast<size_t>(length)) != "anon_inode:[eventfd]") {
    return absl::InvalidArgumentError("descriptor is not an eventfd");
  }
  if (fcntl(fd, F_SETFL, O_NONBLOCK) != 0) return from_errno(errno, "fcntl");
  return absl::OkStatus();
}

void ring_bell(int fd) {
  const uint64_t one = 1;
  [[maybe_unused]] const ssize_t written = write(fd, &one, sizeof(one));  // a full counter is a bell that rings
}

}  // namespace gradrail::transport::shm
