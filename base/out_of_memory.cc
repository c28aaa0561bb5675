#include "base/out_of_memory.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <csignal>
#include <cstdint>
#include <cstdlib>
#include <cstring>

#include "base/file_descriptor.h"
#include "base/resource_limits.h"
#include "base/status.h"
#include "fmt/format.h"

namespace gradrail {
namespace {

constexpr uint64_t kMiB = uint64_t{1} << 20;
/// Distance to the limit that counts as reached. A thread needs 8 MiB for its stack. A process that was refused one is
/// this close to its limit.
constexpr uint64_t kClose = 64 * kMiB;

int exit_code_of_abort = EXIT_FAILURE;  // set once, before other threads

/// A field of /proc/self/status in bytes; 0 without /proc. Fit for a signal handler.
uint64_t status_bytes(std::string_view field) {
  std::array<char, 4096> buffer;
  const int fd = open("/proc/self/status", O_RDONLY | O_CLOEXEC);
  if (fd < 0) return 0;
  const ssize_t count = read(fd, buffer.data(), buffer.size());
  close(fd);
  const std::string_view text(buffer.data(), count > 0 ? static_cast<size_t>(count) : 0);
  size_t at = text.find(field);
  if (at == std::string_view::npos) return 0;
  at = text.find_first_of("0123456789", at);
  uint64_t kib = 0;
  if (at != std::string_view::npos) std::from_chars(text.data() + at, text.data() + text.size(), kib);
  return kib * 1024;
}

struct Limit {
  const char* name;
  uint64_t bytes;  ///< RLIM_INFINITY: none
  uint64_t most;   ///< maximum memory that the process has had
};

std::array<Limit, 2> limits() {
  rlimit space{.rlim_cur = RLIM_INFINITY, .rlim_max = 0}, data = space;
  getrlimit(RLIMIT_AS, &space);
  getrlimit(RLIMIT_DATA, &data);
  return {{{"address space (`ulimit -v`)", space.rlim_cur, status_bytes("VmPeak:")},
           {"data (`ulimit -d`)", data.rlim_cur, status_bytes("VmData:")}}};
}

bool is_close(const Limit& limit) { return limit.bytes != RLIM_INFINITY && limit.most + kClose > limit.bytes; }

/// Writes the cause and the remedy. Fit for a signal handler: fmt allocates nothing here.
size_t describe(char* to, size_t size) {
  for (const Limit& limit : limits()) {
    if (!is_close(limit)) continue;
    const auto end =
        fmt::format_to_n(to, size, "this process has used {} MiB, and its limit of the {} is {} MiB: raise it",
                         limit.most / kMiB, limit.name, limit.bytes / kMiB);
    return std::min(end.size, size);
  }
  const auto end = fmt::format_to_n(
      to, size, "this process has {} MiB in memory: give its host or cgroup more memory, or more hosts the work",
      status_bytes("VmRSS:") / kMiB);
  return std::min(end.size, size);
}

std::string cause() {
  std::array<char, 512> text;
  return std::string(text.data(), describe(text.data(), text.size()));
}

/// Whether the kernel refuses memory at this moment, or has done so.
bool is_out_of_memory() {
  for (const Limit& limit : limits())
    if (is_close(limit)) return true;
  void* const probe = mmap(nullptr, kClose, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (probe == MAP_FAILED) return true;
  munmap(probe, kClose);
  return false;
}

void on_abort(int signal) {
  if (is_out_of_memory()) {
    std::array<char, 1024> line;
    constexpr std::string_view kBegin = "gradrail: out of memory: ";
    std::memcpy(line.data(), kBegin.data(), kBegin.size());
    size_t size = kBegin.size() + describe(line.data() + kBegin.size(), line.size() - kBegin.size() - 1);
    line[size++] = '\n';
    [[maybe_unused]] const bool written = write_all(STDERR_FILENO, {line.data(), size});
    _exit(exit_code_of_abort);
  }
  std::signal(signal, SIG_DFL);
  raise(signal);
}

[[noreturn]] void on_terminate() {
  if (std::current_exception() != nullptr) {
    const absl::Status status = status_of_exception("this program");
    if (absl::IsResourceExhausted(status)) {
      const std::string line = fmt::format("gradrail: {}\n", message_of(status));
      [[maybe_unused]] const bool written = write_all(STDERR_FILENO, line);
      _exit(exit_code_of_abort);
    }
    const std::string line = fmt::format("gradrail: unexpected error: {}\n", message_of(status));
    [[maybe_unused]] const bool written = write_all(STDERR_FILENO, line);
  }
  std::abort();
}

}  // namespace

absl::Status out_of_memory(std::string_view doing) {
  return absl::ResourceExhaustedError(fmt::format("{}: out of memory: {}", doing, cause()));
}

absl::Status status_of_exception(std::string_view doing) {
  try {
    throw;
  } catch (const std::bad_alloc&) {
    return out_of_memory(doing);
  } catch (const std::length_error&) {  // a vector of more elements than an address space has
    return out_of_memory(doing);
  } catch (const std::system_error& error) {
    if (error.code() != std::errc::resource_unavailable_try_again)
      return absl::InternalError(fmt::format("{}: {}", doing, error.what()));
    // A thread: the kernel has no memory for its stack, or permits no further one.
    if (is_out_of_memory()) return out_of_memory(fmt::format("{}: a thread", doing));
    return kernel_refusal(fmt::format("{}: a thread", doing), EAGAIN);
  } catch (const std::exception& error) {
    return absl::InternalError(fmt::format("{}: {}", doing, error.what()));
  }
}

void explain_aborts(int exit_code) {
  exit_code_of_abort = exit_code;
  std::set_terminate(on_terminate);
  std::signal(SIGABRT, on_abort);
}

}  // namespace gradrail
