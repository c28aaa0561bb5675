#include <gtest/gtest.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "topology/pin.h"

namespace {

/// The number of cpus in the mask of a kernel that the test imitates; 0: the kernel of this machine.
int imitated_cpus = 0;

}  // namespace

/// Takes the place of the function of the C library.
extern "C" int sched_getaffinity(pid_t process, size_t bytes, cpu_set_t* mask) noexcept {
  std::memset(mask, 0, bytes);
  if (imitated_cpus == 0) return syscall(SYS_sched_getaffinity, process, bytes, mask) < 0 ? -1 : 0;
  if (bytes * 8 < static_cast<size_t>(imitated_cpus)) {
    errno = EINVAL;
    return -1;
  }
  for (const int cpu : {5, imitated_cpus - 1}) CPU_SET_S(cpu, bytes, mask);
  return 0;
}

namespace gradrail::topology {
namespace {

TEST(LargeMachine, UsableCpusBeyond1024) {
  for (const int cpus : {1024, 1536, 8192}) {
    imitated_cpus = cpus;
    EXPECT_EQ(usable_cpus(), (CpuSet{5, cpus - 1})) << cpus;
  }
  imitated_cpus = 0;
  EXPECT_FALSE(usable_cpus().empty());
}

}  // namespace
}  // namespace gradrail::topology
