#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "topology/plan/pools.h"

namespace gradrail::topology::planning {

/// Cores of one tower by pool: the pool with the most cores first.
using Block = std::vector<std::pair<size_t, int>>;

struct Blocks {
  std::vector<Block> blocks;
  int64_t crossings = 0;  ///< packages and pools that end within a block; one package outweighs all pools
};

/// Cuts the room on the pools, in their order, into `count` blocks of consecutive places: of `most` places each, where
/// there are so many. Otherwise (or with `most` 0) the blocks use all places, and differ by at most one. Of all such
/// cuts, the one with the fewest crossings; of equals the one with the blocks spread best over the machine.
/// With `gaps`: as many places anywhere stay free, and only the crossings are computed.
Blocks cut_blocks(const std::vector<Pool>& pools, const std::vector<int>& room, int count, int most, int gaps);

}  // namespace gradrail::topology::planning
