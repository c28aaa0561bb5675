#pragma once

#include <atomic>

namespace gradrail::worker {

/// `stop` is ClientOptions::stop: null for a client without one.
inline bool asked_to_stop(const std::atomic<bool>* stop) {
  return stop != nullptr && stop->load(std::memory_order_relaxed);
}

}  // namespace gradrail::worker
