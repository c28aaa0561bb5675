#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace gradrail::bench::predict {

/// The values of one flag in a sweep.
struct Sweep {
  std::string name;
  std::vector<std::string> values;
};

/// NAME=A:B:*F and NAME=A:B:+D (numbers from A up to B), NAME=A,B,… (texts).
/// Errors  INVALID_ARGUMENT: another form, or too many values.
absl::StatusOr<Sweep> parse_sweep(const std::string& text);

}  // namespace gradrail::bench::predict
