#pragma once

#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "ps/checkpoint/checkpoint.h"

namespace gradrail::ps {

constexpr uint32_t kFormatVersion = 6;

/// Encodes the header's fields as in the file; checkpoint.cc draws them.
std::string encode_header(const CheckpointHeader& header);

/// Decodes the result of encode_header().
/// Errors  INVALID_ARGUMENT names the byte and the error. Allocates in proportion to `bytes` only.
absl::StatusOr<CheckpointHeader> decode_header(std::string_view bytes);

/// Checks a header before it is written and after it was read.
/// Errors  INVALID_ARGUMENT: fields that contradict each other.
absl::Status check_header(const CheckpointHeader& header);

}  // namespace gradrail::ps
