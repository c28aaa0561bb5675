#pragma once

#include "absl/status/statusor.h"
#include "bench/predict/options.h"

namespace gradrail::bench::predict {

/// `gradrail predict`. Prints a table or JSON. Returns whether each row of --check is within the tolerance of check.cc.
/// Errors  INVALID_ARGUMENT names the flag. Also those of the files.
absl::StatusOr<bool> run_predict(const PredictFlags& flags);

}  // namespace gradrail::bench::predict
