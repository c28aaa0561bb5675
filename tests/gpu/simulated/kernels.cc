#include "tests/gpu/simulated/kernels.h"

#include <csetjmp>
#include <csignal>
#include <cstring>
#include <mutex>
#include <vector>

#include "tests/gpu/simulated/machine.h"

// Additions of CUDA C++ to the language, so that the kernels' own sources run here.
namespace {
struct Index {
  unsigned x;
};
thread_local Index threadIdx, blockIdx, blockDim, gridDim;
}  // namespace
// NOLINTBEGIN(bugprone-reserved-identifier): the words of CUDA
#define __global__
#define __device__
#define __host__
#define __grid_constant__
#define __forceinline__ inline
#define __launch_bounds__(...)
// NOLINTEND(bugprone-reserved-identifier)
#include "gpu/kernels/kernels.cu"

namespace gradrail::simulated {

struct Kernel {
  const char* name;
  size_t argument_bytes;
  void (*run)(const void* argument);
};

namespace {

using namespace gpu::kernels;

template <auto function, typename Argument>
void call(const void* argument) {
  function(*static_cast<const Argument*>(argument));
}

const Kernel kKernels[] = {
// A template argument has no place for parentheses. NOLINTNEXTLINE(bugprone-macro-parentheses)
#define GRADRAIL_KERNEL(name, Argument) {#name, sizeof(Argument), &call<&name, Argument>},
#include "gpu/kernels/list.inc"
#undef GRADRAIL_KERNEL
};

thread_local sigjmp_buf* rescue = nullptr;  ///< where a kernel's bad access on this thread ends
thread_local Result caught = gpu::cuda::kSuccess;
struct sigaction previous;

[[noreturn]] void end_kernel(Result error) {
  caught = error;
  siglongjmp(*rescue, 1);
}

/// The compiler's trap at a misaligned access (CMakeLists.txt).
void on_trap(int signal) {
  if (rescue != nullptr) end_kernel(gpu::cuda::kMisalignedAddress);
  std::signal(signal, SIG_DFL);
}

void on_bad_access(int signal, siginfo_t* info, void* context) {
  const auto address = reinterpret_cast<uintptr_t>(info->si_addr);
  if (rescue != nullptr && Machine::get().memory().contains(address)) end_kernel(gpu::cuda::kIllegalAddress);
  // Not a kernel's: as if this handler were not there.
  sigaction(SIGSEGV, &previous, nullptr);
  if (previous.sa_flags & SA_SIGINFO) previous.sa_sigaction(signal, info, context);
}

void watch_accesses() {
  static std::once_flag once;
  std::call_once(once, [] {
    struct sigaction action {};
    action.sa_sigaction = on_bad_access;
    action.sa_flags = SA_SIGINFO | SA_NODEFER;
    sigaction(SIGSEGV, &action, &previous);
    action.sa_handler = on_trap;
    action.sa_flags = SA_NODEFER;
    for (const int signal : {SIGILL, SIGTRAP}) sigaction(signal, &action, nullptr);  // by processor
  });
}

struct Launch {
  const Kernel& kernel;
  const void* argument;
  unsigned blocks;
  unsigned threads;
};

void run_all(const Launch& launch) {
  gridDim = {launch.blocks};
  blockDim = {launch.threads};
  for (unsigned block = 0; block < launch.blocks; ++block) {
    blockIdx = {block};
    for (unsigned thread = 0; thread < launch.threads; ++thread) {
      threadIdx = {thread};
      launch.kernel.run(launch.argument);
    }
  }
}

Result run_watched(const Launch& launch) {
  watch_accesses();
  sigjmp_buf here;
  if (sigsetjmp(here, 1) != 0) {
    rescue = nullptr;
    return caught;
  }
  rescue = &here;
  run_all(launch);
  rescue = nullptr;
  return gpu::cuda::kSuccess;
}

}  // namespace

const Kernel* find_kernel(const char* name) {
  for (const Kernel& kernel : kKernels) {
    if (std::strcmp(kernel.name, name) == 0) return &kernel;
  }
  return nullptr;
}

std::function<Result(unsigned, unsigned)> bind_kernel(gpu::cuda::Function function, void** arguments) {
  const auto* kernel = reinterpret_cast<const Kernel*>(function);
  // Storage of max_align_t's alignment, as every argument structure needs at most.
  std::vector<std::max_align_t> copy((kernel->argument_bytes + sizeof(std::max_align_t) - 1) /
                                     sizeof(std::max_align_t));
  std::memcpy(copy.data(), arguments[0], kernel->argument_bytes);
  if (!Machine::get().configuration().computes) return [](unsigned, unsigned) { return gpu::cuda::kSuccess; };
  return [kernel, copy = std::move(copy)](unsigned blocks, unsigned threads) {
    return run_watched({*kernel, copy.data(), blocks, threads});
  };
}

}  // namespace gradrail::simulated
