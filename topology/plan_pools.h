#pragma once

#include <vector>

#include "topology/plan.h"

namespace gradrail::topology::planning {

/// Where a thread would like to be. Both -1: anywhere.
struct Home {
  int numa_node = -1;
  int package = -1;
  bool feeds_gpu = false;  ///< the work is done there: a further core away from it is of no use
};

/// The usable cores of one NUMA node of one package: the unit of nearness. Machines without recorded nodes have one for
/// each package.
struct Pool {
  struct Seats {
    int core = -1;          ///< index into Machine::cores
    std::vector<int> cpus;  ///< usable ones; the first is the core's own seat, the others are its siblings'
  };
  int package = -1;
  int numa_node = -1;
  std::vector<Seats> cores;  ///< fast ones first
  bool hybrid = false;       ///< of unequal speed
  CpuSet cpus;               ///< of all cores
  CpuSet siblings;           ///< of those, all that are no core's own seat
};

std::vector<Pool> make_pools(const Machine& machine, const CpuSet& cpus);

constexpr int kFarthest = 2;
/// 0: home, or anything will do; 1: the same package; 2: elsewhere.
int distance(const Pool& pool, const Home& home);

/// Beside a PCI device.
Home home_of(const Machine& machine, const PciPlace& place);

}  // namespace gradrail::topology::planning
