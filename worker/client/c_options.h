#pragma once

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <string_view>

#include "absl/status/statusor.h"
#include "gradrail/client.h"
#include "gradrail/gradrail.h"

namespace gradrail::worker {

/// The members of a struct of options that the program knows. One of an older header is shorter: the others are zero,
/// which selects the defaults. `least_bytes`: a shorter struct lacks what has no default.
/// Errors  INVALID_ARGUMENT: too short, or NULL. `remedy` is "gradrail_join: begin options with GRADRAIL_OPTIONS_INIT".
template <typename Options>
absl::StatusOr<Options> known_part(const Options* given, size_t least_bytes, const char* remedy) {
  if (given == nullptr || given->struct_bytes < least_bytes) return absl::InvalidArgumentError(remedy);
  Options options{};
  std::memcpy(&options, given, std::min(given->struct_bytes, sizeof(options)));
  return options;
}

/// The options of a program in C, checked. The struct may be that of an older header.
/// Errors  INVALID_ARGUMENT names the member, or the variable of the environment. NOT_FOUND, FAILED_PRECONDITION:
///         files.
absl::StatusOr<ClientOptions> to_client_options(const gradrail_options* program);

/// Errors  INVALID_ARGUMENT: a pointer is NULL. `call` is the function that the program has called.
absl::StatusOr<Schema> to_schema(std::string_view call, const gradrail_tensor* tensors, size_t tensor_count);

}  // namespace gradrail::worker
