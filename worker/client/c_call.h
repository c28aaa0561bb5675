#pragma once

#include <exception>
#include <new>

#include "absl/status/status.h"
#include "gradrail/gradrail.h"

namespace gradrail::worker {

/// Keeps the text for gradrail_last_error() of this thread, and returns the code.
gradrail_status report(const absl::Status& status);

/// Runs `body`, which returns an absl::Status; no exception may unwind into C.
template <typename Body>
gradrail_status guarded(Body body) noexcept {
  try {
    return report(body());
  } catch (const std::bad_alloc&) {
    return report(absl::ResourceExhaustedError("out of memory"));
  } catch (const std::exception& error) {
    return report(absl::InternalError(error.what()));
  }
}

}  // namespace gradrail::worker
