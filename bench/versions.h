#pragma once

#include <string>

#include "nlohmann/json_fwd.hpp"

namespace gradrail::bench {

/// "gradrail 0.5.0 1a2b3c4".
std::string version_text();

/// Name → version or why there is none, of what carries bytes or computes: transports' libraries, CUDA, cuBLAS, NCCL.
nlohmann::json libraries();

}  // namespace gradrail::bench
