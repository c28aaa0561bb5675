#pragma once

#include <string>
#include <vector>

#include "absl/types/span.h"

namespace gradrail::tools {

/// One line for each argument that is a flag of a tutorial of TensorFlow or Horovod, and has another name in
/// `gradrail train`.
std::vector<std::string> hints_for_tutorial_flags(absl::Span<char* const> arguments);

}  // namespace gradrail::tools
