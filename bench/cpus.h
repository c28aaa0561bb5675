#pragma once

#include "topology/cpu_set.h"

namespace gradrail::bench {

/// Those that the calling process may run on; empty where the kernel does not say.
topology::CpuSet usable_cpus();

}  // namespace gradrail::bench
