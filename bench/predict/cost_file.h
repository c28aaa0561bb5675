#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "bench/predict/description.h"

namespace gradrail::bench::predict {

/// Times that bench/results has of one machine, for these gradients.
Costs recorded_costs(PushFormat push);

/// Replaces costs by those of a recorded run. `bench apply`: apply and packing of `optimizer` and `push`, from the rows
/// of the largest size. `bench exchange` over tcp with one worker and one shard on one host: messages and bytes.
/// Errors  as bench::read_run() and figures_of(); DATA_LOSS: has none of these rows.
absl::Status read_costs(const std::string& path, const std::string& optimizer, PushFormat push, Costs& costs);

}  // namespace gradrail::bench::predict
