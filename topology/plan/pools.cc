#include "topology/plan/pools.h"

#include <algorithm>
#include <map>

namespace gradrail::topology::planning {

std::vector<Pool> make_pools(const Machine& machine, const CpuSet& cpus) {
  // Ordered by package and node: the order of the pools decides between equals, in every process alike.
  std::map<std::pair<int, int>, Pool> by_place;
  for (size_t i = 0; i < machine.cores.size(); ++i) {
    const Core& core = machine.cores[i];
    Pool::UsableCore usable{.core = static_cast<int>(i), .cpus = {}};
    for (const int cpu : core.allowed)
      if (cpus.contains(cpu)) usable.cpus.push_back(cpu);
    // A core without a usable cpu is in no pool: neither its place nor its siblings count.
    if (usable.cpus.empty()) continue;
    Pool& pool = by_place[{core.package, core.numa_node}];
    for (const int cpu : usable.cpus) {
      pool.cpus.insert(cpu);
      if (cpu != usable.cpus.front()) pool.siblings.insert(cpu);
    }
    pool.package = core.package;
    pool.numa_node = core.numa_node;
    pool.cores.push_back(std::move(usable));
  }
  std::vector<Pool> pools;
  for (auto& [place, pool] : by_place) {
    const auto speed = [&](const Pool::UsableCore& usable) { return machine.cores[usable.core].efficiency; };
    // Stable: cores of equal speed keep hwloc's order, in which neighbors share caches.
    std::stable_sort(pool.cores.begin(), pool.cores.end(),
                     [&](const Pool::UsableCore& a, const Pool::UsableCore& b) { return speed(a) > speed(b); });
    pool.hybrid = speed(pool.cores.front()) != speed(pool.cores.back());
    pools.push_back(std::move(pool));
  }
  return pools;
}

int distance(const Pool& pool, const Locality& locality) {
  if (locality.numa_node >= 0 && locality.numa_node == pool.numa_node) return 0;
  const bool one_package = locality.package >= 0 && locality.package == pool.package;
  // A device with a package but without a node is near all nodes of that package.
  if (locality.numa_node < 0) return locality.package < 0 || one_package ? 0 : kFarthest;
  return one_package ? 1 : kFarthest;
}

Locality locality_of(const Machine& machine, const PciPlace& place) {
  Locality locality{.numa_node = place.numa_node, .package = place.package};
  if (locality.package < 0 && locality.numa_node >= 0)
    locality.package = machine.numa_nodes[locality.numa_node].package;
  return locality;
}

}  // namespace gradrail::topology::planning
