#pragma once

#include "absl/status/status.h"
#include "absl/status/statusor.h"

/// Passes an error on to the caller.
#define GRADRAIL_RETURN_IF_ERROR(expression)                                \
  do {                                                                      \
    if (absl::Status status_ = (expression); !status_.ok()) return status_; \
  } while (false)
