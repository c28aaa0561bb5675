#pragma once

#include <vector>

#include "tools/doctor/check.h"
#include "tools/doctor/facts/rdma_facts.h"

namespace gradrail::tools::doctor {

/// The kernel, hwloc and NUMA nodes, pages, clocks, and what the cgroups of this process forbid.
std::vector<Check> check_host(System& system, const std::vector<RdmaDevice>& devices);

/// Warns below Linux 5.12, the first with dma-buf for RDMA.
Check check_kernel(System& system);
/// hwloc in a process of its own, and the distances of the NUMA nodes.
Check check_topology(System& system);
/// The migration of pages between NUMA nodes: it unmaps them for a short time.
Check check_numa_balancing(System& system);
/// Reserved or transparent: either shortens the translation tables of a NIC.
Check check_hugepages(System& system);
Check check_governor(System& system);
/// Limits on RDMA handles and objects; not applicable without an RDMA device.
Check check_cgroup_rdma(System& system, const std::vector<RdmaDevice>& devices);
/// Memory, CPU time and threads: the smallest limit on the way to the root counts.
Check check_cgroup_limits(System& system);

}  // namespace gradrail::tools::doctor
