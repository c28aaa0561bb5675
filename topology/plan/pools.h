#pragma once

#include <vector>

#include "topology/plan/plan.h"

namespace gradrail::topology::planning {

/// Preferred place of a thread. Both -1: anywhere.
struct Locality {
  int numa_node = -1;
  int package = -1;
  bool feeds_gpu = false;  ///< the place of a GPU: a further core away from it is of no use
};

/// The usable cores of one NUMA node of one package: the unit of nearness. Machines without recorded nodes have one for
/// each package.
struct Pool {
  struct UsableCore {
    int core = -1;          ///< index into Machine::cores
    std::vector<int> cpus;  ///< usable ones; the first is the core's own cpu, the others are its siblings
  };
  int package = -1;
  int numa_node = -1;
  std::vector<UsableCore> cores;  ///< fast ones first
  bool hybrid = false;            ///< the cores have unequal speed
  CpuSet cpus;                    ///< cpus of all cores
  CpuSet siblings;                ///< all of `cpus` except the first cpu of each core
};

/// Each pool has at least one core. `cpus` is what the request may use.
std::vector<Pool> make_pools(const Machine& machine, const CpuSet& cpus);

constexpr int kFarthest = 2;
/// 0: the locality itself, or any place is acceptable; 1: the same package; 2: elsewhere.
int distance(const Pool& pool, const Locality& locality);

/// Place beside a PCI device.
Locality locality_of(const Machine& machine, const PciPlace& place);

}  // namespace gradrail::topology::planning
