#include "topology/plan_pools.h"

#include <algorithm>
#include <map>

namespace gradrail::topology::planning {

std::vector<Pool> make_pools(const Machine& machine, const CpuSet& cpus) {
  std::map<std::pair<int, int>, Pool> by_place;
  for (size_t i = 0; i < machine.cores.size(); ++i) {
    const Core& core = machine.cores[i];
    Pool::Seats seats{.core = static_cast<int>(i), .cpus = {}};
    for (const int cpu : core.allowed)
      if (cpus.contains(cpu)) seats.cpus.push_back(cpu);
    if (seats.cpus.empty()) continue;
    Pool& pool = by_place[{core.package, core.numa_node}];
    for (const int cpu : seats.cpus) {
      pool.cpus.insert(cpu);
      if (cpu != seats.cpus.front()) pool.siblings.insert(cpu);
    }
    pool.package = core.package;
    pool.numa_node = core.numa_node;
    pool.cores.push_back(std::move(seats));
  }
  std::vector<Pool> pools;
  for (auto& [place, pool] : by_place) {
    const auto speed = [&](const Pool::Seats& seats) { return machine.cores[seats.core].efficiency; };
    std::stable_sort(pool.cores.begin(), pool.cores.end(),
                     [&](const Pool::Seats& a, const Pool::Seats& b) { return speed(a) > speed(b); });
    pool.hybrid = speed(pool.cores.front()) != speed(pool.cores.back());
    pools.push_back(std::move(pool));
  }
  return pools;
}

int distance(const Pool& pool, const Home& home) {
  if (home.numa_node >= 0 && home.numa_node == pool.numa_node) return 0;
  const bool one_package = home.package >= 0 && home.package == pool.package;
  if (home.numa_node < 0) return home.package < 0 || one_package ? 0 : kFarthest;
  return one_package ? 1 : kFarthest;
}

Home home_of(const Machine& machine, const PciPlace& place) {
  Home home{.numa_node = place.numa_node, .package = place.package};
  if (home.package < 0 && home.numa_node >= 0) home.package = machine.numa_nodes[home.numa_node].package;
  return home;
}

}  // namespace gradrail::topology::planning
