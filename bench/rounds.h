#pragma once

#include <functional>
#include <string>
#include <vector>

#include "bench/report.h"

namespace gradrail::bench {

/// One row of a question at one size: measured once a round.
struct Contestant {
  std::string name;
  std::function<std::vector<Figure>(uint64_t bytes)> measure;  ///< the same rows each time
};

/// For each size: all contestants take turns, `rounds` times, in an order that the seed shuffles anew each round, so
/// that no one always follows the same neighbour; then their rows, merged, in the order given, after `finish` has seen
/// all of that size.
void take_turns(const Options& options, const std::vector<uint64_t>& sizes, const std::vector<Contestant>& contestants,
                Report& report, const std::function<void(std::vector<Figure>& rows)>& finish = nullptr);

}  // namespace gradrail::bench
