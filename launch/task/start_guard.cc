#include "launch/task/start_guard.h"

#include <dlfcn.h>
#include <pthread.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <string_view>

#include "base/exit_codes.h"
#include "base/file_descriptor.h"
#include "base/resource_limits.h"
#include "base/status.h"
#include "fmt/format.h"

namespace gradrail::launch {
namespace {

// A signal handler and a replaced function have no object: their data is global.
std::atomic<bool> starts = false;
std::array<char, 32> task_name{};
std::array<char, 512> abort_text{};
void (*former_handler)(int) = SIG_DFL;

/// Only write() and _exit(): the library may hold any lock.
void on_abort(int /*number*/) {
  [[maybe_unused]] const ssize_t written = write(STDERR_FILENO, abort_text.data(), std::strlen(abort_text.data()));
  _exit(kConfiguration);
}

template <size_t kSize>
void store(std::array<char, kSize>& place, const std::string& text) {
  place.fill(0);
  text.copy(place.data(), kSize - 1);
}

[[maybe_unused]] bool is_of_grpc(const void* caller) {
  Dl_info from{};
  if (dladdr(caller, &from) == 0 || from.dli_fname == nullptr) return false;
  const std::string_view library = from.dli_fname;
  return library.find("/libgpr") != library.npos || library.find("/libgrpc") != library.npos;
}

/// No buffered output and no destructors: other threads of gRPC run.
[[noreturn]] [[maybe_unused]] void end_without_thread(int error) {
  const std::string text =
      fmt::format("gradrail: {}: {}\n", task_name.data(), message_of(kernel_refusal("start a thread of gRPC", error)));
  write_all(STDERR_FILENO, text);
  _exit(kConfiguration);
}

}  // namespace

StartGuard::StartGuard(const std::string& task) {
  store(task_name, task);
  store(abort_text,
        fmt::format("gradrail: {}: a library has aborted during the start (its message is above): the kernel has "
                    "probably refused it memory, a file or a thread; see cgroup-limits of `gradrail doctor`, and "
                    "`ulimit -a`\n",
                    task));
  former_handler = std::signal(SIGABRT, on_abort);
  starts = true;
}

void StartGuard::end() {
  if (starts.exchange(false)) std::signal(SIGABRT, former_handler);
}

}  // namespace gradrail::launch

// Sanitizers have a function of their own in this place.
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
/// Libraries of the program call this function in the place of the one in libc.
extern "C" __attribute__((visibility("default"))) int pthread_create(pthread_t* thread,
                                                                     const pthread_attr_t* attributes,
                                                                     void* (*run)(void*), void* argument) {
  static const auto real = reinterpret_cast<decltype(&pthread_create)>(dlsym(RTLD_NEXT, "pthread_create"));
  const int error = real(thread, attributes, run, argument);
  if (error == EAGAIN && gradrail::launch::starts && gradrail::launch::is_of_grpc(__builtin_return_address(0)))
    gradrail::launch::end_without_thread(error);
  return error;
}
#endif
