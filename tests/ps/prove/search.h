#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tests/ps/prove/config.h"
#include "tests/ps/prove/event.h"

namespace gradrail::ps::prove {

struct Result {
  uint64_t states = 0;
  uint64_t transitions = 0;
  uint64_t depth = 0;  ///< events on the longest of the shortest paths
  double seconds = 0;
  bool is_complete = true;  ///< false: the limit of states was reached
  std::string violation;    ///< "": none
  std::vector<Event> path;  ///< a shortest path to the violation
};

/// Searches all states that are reachable from the first one, breadth first.
/// Checks   Each event leaves World::violation() empty. Each state without events other than faults is complete. From
///          each state, a run without further faults ends in a complete state.
/// Source   Clarke, Grumberg, Peled, Model Checking, 1999 (persistent sets, symmetry); Holzmann, 1991 (state hashing).
Result search(const Config& config, uint64_t state_limit);

}  // namespace gradrail::ps::prove
