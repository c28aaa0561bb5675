#pragma once

#include <string>
#include <vector>

#include "topology/machine.h"
#include "topology/plan/plan.h"

namespace gradrail::topology {

/// A thread group on a core or a user of a device: "worker/0 tower 1", "ps/0 shard 0".
struct Occupant {
  std::string name;
  std::string mark;  ///< the same in a few characters: "w0.1", "s0.0"
  bool is_tower = true;
};

/// A physical core in a drawing. On an oversubscribed host several tenants share it.
struct CoreSlot {
  std::vector<int> cpus;
  bool open = true;            ///< this process may run there
  std::vector<int> occupants;  ///< indices into Outline::occupants
  bool progress = false;       ///< cpu of the tower's progress thread
};

/// A box of a drawing and the boxes inside it: machine, packages, NUMA nodes, the bridges that have something below.
struct Box {
  enum class Kind { machine, package, numa_node, root, bridge, gpu, nic };
  Kind kind = Kind::machine;
  std::string title;            ///< "NUMA node 3"
  std::string detail;           ///< "63 GB"; may be empty
  std::vector<int> occupants;   ///< occupants of a device
  std::vector<CoreSlot> slots;  ///< cores right in this box
  std::vector<Box> inside;
};

/// Content of the console tree and of the picture.
struct Outline {
  // Other structures refer to an occupant by its index: a device has several, a core too.
  std::vector<Occupant> occupants;  ///< towers, then shards, in the placement's order
  Box machine;
};

/// Bridges with a single thing below are passed over; packages and NUMA nodes of one machine are always there.
Outline make_outline(const Machine& machine, const Placement& placement);

}  // namespace gradrail::topology
