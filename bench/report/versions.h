#pragma once

#include "nlohmann/json_fwd.hpp"

namespace gradrail::bench {

/// Name → version or why there is none, of what carries bytes or computes: transports' libraries, CUDA, cuBLAS, NCCL.
/// Takes up to ten seconds: libraries are loaded in a child. Without an answer the list is {"unknown": reason}.
nlohmann::json libraries();

/// Loads the libraries: the part that runs in a separate process (bench/driver/jobs.h).
nlohmann::json load_libraries();

}  // namespace gradrail::bench
