#pragma once

#include "nlohmann/json_fwd.hpp"

namespace gradrail::bench {

/// Name → version or why there is none, of what carries bytes or computes: transports' libraries, CUDA, cuBLAS, NCCL.
nlohmann::json libraries();

/// The part of it that runs in a process of its own (bench/driver/jobs.h).
nlohmann::json load_libraries();

}  // namespace gradrail::bench
