#pragma once

#include <string>

#include "absl/status/statusor.h"

namespace CLI {
class App;
}

namespace gradrail::tools {

/// The flags of `gradrail topo` as typed.
struct TopoFlags {
  std::string topology;  ///< file or description; empty: this machine
  int ps = 1;
  int shards = 1;
  int workers = 1;
  // 0: one for each GPU, or one on the CPUs.
  int towers = 0;
  std::string device = "auto";
  // 0: the free cores near it.
  int cores_per_tower = 0;
  // Comma-separated lists; empty: no restriction.
  std::string gpu, nic, cores, reserve, require;
  bool json = false;
  bool explain = false;
  std::string svg;
};

void add_topo_flags(CLI::App& command, TopoFlags& flags);

/// Prints the machine with towers, shards and NICs drawn into it. Returns whether --require holds: each tower and each
/// shard has a NIC with RDMA.
/// Errors  INVALID_ARGUMENT, NOT_FOUND name the flag, the cause and what would be right.
absl::StatusOr<bool> run_topo(const TopoFlags& flags);

}  // namespace gradrail::tools
