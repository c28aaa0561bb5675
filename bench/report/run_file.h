#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "bench/report/figure.h"
#include "nlohmann/json_fwd.hpp"

namespace gradrail::bench {

/// A file of `gradrail bench … -J`. A pipe is read as well.
/// Errors  as read_file(); DATA_LOSS: not such a file. The message begins with the path.
absl::StatusOr<nlohmann::json> read_run(const std::string& path);

/// Whether the document has the fields that each file of `-J` has.
bool is_recorded_run(const nlohmann::json& json);

/// The rows of a recorded run. Errors  DATA_LOSS: a field is missing or has another type.
absl::StatusOr<std::vector<Figure>> figures_of(const nlohmann::json& run);
/// The same for the run of a file. Its path begins the message of an error.
absl::StatusOr<std::vector<Figure>> figures_of(const nlohmann::json& run, const std::string& path);

}  // namespace gradrail::bench
