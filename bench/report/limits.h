#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "bench/report/figure.h"
#include "nlohmann/json_fwd.hpp"

namespace gradrail::bench {

/// Bounds for the rows of a run that a path, a quantity and a size select.
struct Limit {
  std::string origin;                  ///< of the bounds, for messages: "limits.json, limit 2", "--min-bw"
  std::string path;                    ///< of the rows; `*` at its end matches the rest of a path
  std::string what;                    ///< "": each quantity
  uint64_t bytes = 0;                  ///< 0: each size
  std::optional<double> min_gb_per_s;  ///< of alg_bw, 10⁹ bytes a second; latencies have none
  std::optional<double> max_us;        ///< of the median
  std::optional<double> max_p99_us;    ///< of the 99th percentile
};

/// The limits of a JSON list, or those of a recorded run: each median is exceeded by at most the tolerance.
/// `config` is that of the run that has to keep the limits (config_of()).
/// Units   tolerance_percent of a recorded time.
/// Errors  INVALID_ARGUMENT: the file cannot be read, is neither of both, or has no limits. Also: it was recorded with
///         other settings, or does not fit the tolerance. The message names the limit and the remedy.
absl::StatusOr<std::vector<Limit>> read_limits(const std::string& file, std::optional<double> tolerance_percent,
                                               const nlohmann::json& config);

/// One limit for each path and quantity, at its largest size: small sizes are bound by latency.
std::vector<Limit> bandwidth_limits(const std::vector<Figure>& figures, double min_gb_per_s, const std::string& origin);

/// One line for each bound that a row exceeds, and for each bound that no measured row has a figure for.
std::vector<std::string> violations(const std::vector<Limit>& limits, const std::vector<Figure>& figures);

}  // namespace gradrail::bench
