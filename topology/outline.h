#pragma once

#include <string>
#include <vector>

#include "topology/machine.h"
#include "topology/plan.h"

namespace gradrail::topology {

/// Who sits on a core or uses a device: "worker/0 tower 1", "ps/0 shard 0".
struct Tenant {
  std::string name;
  bool is_tower = true;
};

/// A physical core in a drawing. On a crowded host several tenants share it.
struct Seat {
  std::vector<int> cpus;
  bool open = true;          ///< this process may run there
  std::vector<int> tenants;  ///< indices into Outline::tenants
  bool progress = false;     ///< of the tower's progress thread
};

/// A box of a drawing and the boxes inside it: machine, packages, NUMA nodes, the bridges that have something below.
struct Box {
  enum class Kind { machine, package, numa_node, root, bridge, gpu, nic };
  Kind kind = Kind::machine;
  std::string title;         ///< "NUMA node 3"
  std::string detail;        ///< "63 GB"; may be empty
  std::vector<int> tenants;  ///< of a device
  std::vector<Seat> seats;   ///< cores right in this box
  std::vector<Box> inside;
};

/// What the console tree and the picture both draw.
struct Outline {
  std::vector<Tenant> tenants;  ///< towers, then shards, in the placement's order
  Box machine;
};

/// Bridges with a single thing below are passed over; packages and NUMA nodes of one machine are always there.
Outline make_outline(const Machine& machine, const Placement& placement);

}  // namespace gradrail::topology
