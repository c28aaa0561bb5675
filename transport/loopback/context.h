#pragma once

#include <cstdint>
#include <memory>

#include "absl/status/statusor.h"
#include "transport/context.h"
#include "transport/registry.h"

namespace gradrail::transport::loopback {

/// Faults that a context adds to its posted operations. The seed determines all of them: a simulation that polls its
/// contexts in a fixed order from one thread runs the same way every time.
/// Ordering  Puts do not overtake puts, and messages do not overtake messages, of their connection; everything else may
///           be reordered.
struct Faults {
  uint64_t seed = 0;
  double delay_probability = 0.0;         ///< probability for one operation; it then delays those that must follow it
  int max_delay_polls = 0;                ///< polls of the peer; a delay is uniform in [1, max_delay_polls]
  double loss_of_link_probability = 0.0;  ///< probability for one operation; such a put leaves a part of its bytes
};

/// Contexts of one process, joined by names (listen chooses one for the address ""). Deterministic. The bytes of a put
/// move when the *peer* polls, as late as the interface allows. So a caller that reuses memory too early is detected.
absl::StatusOr<std::unique_ptr<Context>> open(const OpenOptions& options);
absl::StatusOr<std::unique_ptr<Context>> open_with(const Faults& faults);

}  // namespace gradrail::transport::loopback
