#pragma once

#include <cstdint>
#include <string>

#include "gradrail/clock.h"
#include "gradrail/export.h"

namespace gradrail {

/// Cost of registered memory so far: pinning a page takes time, and the amount of pinned memory is limited.
struct RegistrationBudget {
  uint32_t regions = 0;
  uint64_t bytes = 0;
  Duration time = Duration::zero();

  /// A text for people: "4 regions, 636 KiB, 1.24 ms".
  GRADRAIL_EXPORT std::string text() const;
};

}  // namespace gradrail
