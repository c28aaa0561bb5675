#pragma once

#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "ps/checkpoint.h"

namespace gradrail::ps {

/// The header's fields as they lie in the file; checkpoint.cc draws them.
std::string encode_header(const CheckpointHeader& header);

/// Takes back exactly what encode_header() wrote.
/// Errors  INVALID_ARGUMENT: what is wrong at which byte of the header. Allocates in proportion to `bytes` only.
absl::StatusOr<CheckpointHeader> decode_header(std::string_view bytes);

/// INVALID_ARGUMENT: fields that contradict each other. Holds for whatever is written or read.
absl::Status check_header(const CheckpointHeader& header);

}  // namespace gradrail::ps
