#pragma once

#include "gradrail/client.h"

namespace gradrail::worker {

/// Whether the call of the owner thread must end at once.
inline bool is_interrupted(const ClientOptions& options) {
  return options.hooks.interrupted && options.hooks.interrupted();
}

/// Whether a wait for another task must end. Threads  Owner thread.
inline bool asked_to_stop(const ClientOptions& options) {
  return (options.hooks.stop != nullptr && options.hooks.stop->load(std::memory_order_relaxed)) ||
         is_interrupted(options);
}

}  // namespace gradrail::worker
