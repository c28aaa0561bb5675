#pragma once

#include <vector>

#include "tools/doctor/check.h"
#include "tools/doctor/facts/rdma_facts.h"

namespace gradrail::tools::doctor {

/// The kernel, hwloc and NUMA nodes, pages, clocks, and what the cgroups of this process forbid.
std::vector<Check> check_host(System& system, const std::vector<RdmaDevice>& devices);

Check check_kernel(System& system);
Check check_topology(System& system);
Check check_numa_balancing(System& system);
Check check_hugepages(System& system);
Check check_governor(System& system);
Check check_cgroup_rdma(System& system, const std::vector<RdmaDevice>& devices);
Check check_cgroup_limits(System& system);

}  // namespace gradrail::tools::doctor
