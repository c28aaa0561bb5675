#include "base/memory.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

#include "base/resource_limits.h"
#include "fmt/format.h"

namespace gradrail {
namespace {

absl::Status refused_memory(const std::string& name, size_t bytes, const char* call) {
  const absl::Status why = kernel_refusal(fmt::format("shared memory '{}' of {} bytes: {}", name, bytes, call), errno);
  // Whatever the kernel calls it, there is no memory.
  return absl::ResourceExhaustedError(why.message());
}

/// seccomp, a security module or an old kernel forbids the call: no limit is the cause.
bool is_forbidden(int error) { return error == EPERM || error == EACCES || error == ENOSYS; }

}  // namespace

absl::StatusOr<SharedMemory> SharedMemory::create(const std::string& name, size_t bytes) {
  SharedMemory memory;
  // mmap() refuses a length of zero.
  const size_t mapped_bytes = bytes == 0 ? 1 : bytes;
  const int fd = memfd_create(name.c_str(), MFD_CLOEXEC | MFD_ALLOW_SEALING);
  const bool has_file = fd >= 0;
  if (!has_file && !is_forbidden(errno)) return refused_memory(name, bytes, "memfd_create");
  memory.span_.fd = fd;  // owned from here on: every return closes it
  if (has_file && ftruncate(fd, static_cast<off_t>(mapped_bytes)) != 0) return refused_memory(name, bytes, "ftruncate");
  // F_SEAL_SEAL: a peer that receives the descriptor cannot add a seal that forbids later writable mappings.
  if (has_file && fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0)
    return refused_memory(name, bytes, "seal");
  const int flags = has_file ? MAP_SHARED : MAP_SHARED | MAP_ANONYMOUS;
  void* address = mmap(nullptr, mapped_bytes, PROT_READ | PROT_WRITE, flags, fd, 0);
  if (address == MAP_FAILED) return refused_memory(name, bytes, "mmap");
  memory.span_.data = static_cast<std::byte*>(address);
  memory.span_.bytes = bytes;
  return memory;
}

SharedMemory::SharedMemory(SharedMemory&& other) noexcept : span_(std::exchange(other.span_, {})) {}

SharedMemory& SharedMemory::operator=(SharedMemory&& other) noexcept {
  // The former memory is unmapped with `other`.
  std::swap(span_, other.span_);
  return *this;
}

SharedMemory::~SharedMemory() {
  if (span_.data != nullptr) munmap(span_.data, span_.bytes == 0 ? 1 : span_.bytes);
  if (span_.fd >= 0) close(span_.fd);
}

}  // namespace gradrail
