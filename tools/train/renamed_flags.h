#pragma once

#include <string>
#include <vector>

#include "absl/types/span.h"

namespace gradrail::tools {

/// One line for each argument that is a flag under its former name: "--meet is now --rendezvous tcp://HOST:PORT".
std::vector<std::string> hints_for_renamed_flags(absl::Span<char* const> arguments);

}  // namespace gradrail::tools
