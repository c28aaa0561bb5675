#pragma once

#include <cstddef>
#include <string_view>

#include "absl/status/statusor.h"
#include "gradrail/client.h"
#include "gradrail/gradrail.h"

namespace gradrail::worker {

/// The options of a program in C, checked. The struct may be that of an older header.
/// Errors  INVALID_ARGUMENT names the member, or the variable of the environment. NOT_FOUND, FAILED_PRECONDITION:
///         files.
absl::StatusOr<ClientOptions> to_client_options(const gradrail_options* program);

/// Errors  INVALID_ARGUMENT: a pointer is NULL. `call` is the function that the program has called.
absl::StatusOr<Schema> to_schema(std::string_view call, const gradrail_tensor* tensors, size_t tensor_count);

}  // namespace gradrail::worker
