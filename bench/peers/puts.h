#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "bench/driver/options.h"
#include "bench/driver/rounds.h"

namespace gradrail::bench {

/// A contender of a group that put the same bytes over the same medium: ours, the first, or the library below it.
struct PutContender {
  std::string group;              ///< "ucx-tcp"
  std::string name;               ///< "gradrail ucx", "ucx_perftest tag"
  std::vector<std::string> what;  ///< those of "latency", "bandwidth" that it reports

  std::string path() const { return group + ": " + name; }
};

/// Placement of the processes of puts.
struct PutPlacement {
  bool pin = false;       ///< a core for each side
  bool realtime = false;  ///< real-time priority
};

/// Contenders that compare_put.py can run on one host, of the selected transports.
/// Errors  UNAVAILABLE: no Python, or no such script.
absl::StatusOr<std::vector<PutContender>> put_contenders(const Options& options);

/// Returns a row for each contender that reports `what`.
std::vector<Contestant> put_contestants(const std::vector<PutContender>& contenders, const Options& options,
                                        const PutPlacement& placement, const std::string& what);

/// ours/it: how many times as much ours costs, beside the first of each group.
void add_put_ratios(const std::vector<PutContender>& contenders, std::vector<Figure>& rows);

}  // namespace gradrail::bench
