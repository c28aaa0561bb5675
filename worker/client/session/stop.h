#pragma once

#include "worker/client/client.h"

namespace gradrail::worker {

/// Whether the call of the owner thread must end immediately.
inline bool is_interrupted(const ClientOptions& options) { return options.interrupted && options.interrupted(); }

/// Whether a wait for another task must end. Threads  Owner thread.
inline bool asked_to_stop(const ClientOptions& options) {
  return (options.stop != nullptr && options.stop->load(std::memory_order_relaxed)) || is_interrupted(options);
}

}  // namespace gradrail::worker
