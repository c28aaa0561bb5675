#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "bench/report/figure.h"
#include "nlohmann/json_fwd.hpp"

namespace gradrail::bench {

/// A file of `gradrail bench … -J`. A pipe is read as well.
/// Errors  Those of read_file(); DATA_LOSS: not such a file. The message begins with the path.
absl::StatusOr<nlohmann::json> read_run(const std::string& path);

/// The rows of the run of a file.
/// Errors  DATA_LOSS: a field is missing or has another type. The path begins the message.
absl::StatusOr<std::vector<Figure>> figures_of(const nlohmann::json& run, const std::string& path);

}  // namespace gradrail::bench
