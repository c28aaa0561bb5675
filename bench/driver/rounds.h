#pragma once

#include <functional>
#include <string>
#include <vector>

#include "bench/report/report.h"

namespace gradrail::bench {

/// A row of a suite at one size: measured once a round.
struct Contestant {
  std::string name;
  /// Runs in this process; most contenders measure in a child (report/isolated_figures.h).
  std::function<std::vector<Figure>(uint64_t bytes)> measure;  ///< the same rows each time
};

/// Runs all contestants of each size in turn, `rounds` times. The order of each round is shuffled, so that no
/// contestant always follows the same neighbor. Then their rows follow, merged, in the order given, after `finish` has
/// processed all of that size.
void take_turns(const Options& options, const std::vector<uint64_t>& sizes, const std::vector<Contestant>& contestants,
                Report& report, const std::function<void(std::vector<Figure>& rows)>& finish = nullptr);

}  // namespace gradrail::bench
