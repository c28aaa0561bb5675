#pragma once

#include "absl/status/statusor.h"
#include "bench/predict/options.h"

namespace gradrail::bench::predict {

/// Compares each row over tcp of a run of `bench exchange -J` or `incast -J` with the prediction, and prints both.
/// Workers, servers, shards, mode, formats and buckets are those of the run. Network and costs are those of the flags.
/// Returns  whether each median is within 10 %.
/// Errors   as read_run(); DATA_LOSS: another suite, or no row over tcp. INVALID_ARGUMENT: as simulate().
absl::StatusOr<bool> run_check(const PredictFlags& flags);

}  // namespace gradrail::bench::predict
