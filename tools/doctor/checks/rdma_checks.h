#pragma once

#include <vector>

#include "tools/doctor/check.h"
#include "tools/doctor/facts/rdma_facts.h"

namespace gradrail::tools::doctor {

/// Devices, ports, GIDs, partitions, MTUs, rdma-core's providers, and whether this user may use and pin memory for
/// them.
std::vector<Check> check_rdma(System& system, const std::vector<RdmaDevice>& devices);

/// missing, not broken, without a device: the program then uses tcp.
Check check_rdma_devices(System& system, const std::vector<RdmaDevice>& devices);
/// One active port is enough: another port without a cable is a warning.
Check check_rdma_ports(const std::vector<RdmaDevice>& devices);
/// An Ethernet port needs a RoCE v2 GID with an address of an interface of this host.
Check check_rdma_gids(System& system, const std::vector<RdmaDevice>& devices);
/// InfiniBand only: full membership of a partition.
Check check_rdma_pkeys(System& system, const std::vector<RdmaDevice>& devices);
Check check_rdma_mtu(System& system, const std::vector<RdmaDevice>& devices);
/// libibverbs ignores a device without the provider of its driver.
Check check_rdma_providers(System& system, const std::vector<RdmaDevice>& devices);
Check check_uverbs_access(System& system, const std::vector<RdmaDevice>& devices);
/// RLIMIT_MEMLOCK, unless CAP_IPC_LOCK lifts it.
Check check_memlock(System& system);

}  // namespace gradrail::tools::doctor
