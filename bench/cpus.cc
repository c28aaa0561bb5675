#include "bench/cpus.h"

#include <sched.h>

namespace gradrail::bench {

topology::CpuSet usable_cpus() {
  cpu_set_t set;
  CPU_ZERO(&set);
  topology::CpuSet cpus;
  if (sched_getaffinity(0, sizeof(set), &set) != 0) return cpus;
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu)
    if (CPU_ISSET(cpu, &set)) cpus.insert(cpu);
  return cpus;
}

}  // namespace gradrail::bench
