#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "bench/predict/description.h"
#include "nlohmann/json_fwd.hpp"

namespace gradrail::bench::predict {

/// A run that `gradrail bench … -J` has recorded.
/// Errors  as read_file(); DATA_LOSS: not such a file.
absl::StatusOr<nlohmann::json> read_run(const std::string& path);

/// Times that bench/results has of one machine, for these gradients.
Costs recorded_costs(ps::PushFormat push);

/// Replaces costs by those of a recorded run. `bench apply`: apply and packing of `optimizer` and `push`, from the rows
/// of the largest size. `bench exchange` over tcp with one worker and one shard on one host: messages and bytes.
/// Errors  as read_run(); DATA_LOSS: has none of these rows.
absl::Status read_costs(const std::string& path, const std::string& optimizer, ps::PushFormat push, Costs& costs);

}  // namespace gradrail::bench::predict
