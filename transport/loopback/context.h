#pragma once

#include <cstdint>
#include <memory>

#include "absl/status/statusor.h"
#include "transport/context.h"
#include "transport/registry.h"

namespace gradrail::transport::loopback {

/// What a context does to the operations it posts. Everything is drawn from the seed: a simulation that polls its
/// contexts in a fixed order from one thread runs the same way every time.
/// Ordering  Puts stay behind puts and messages behind messages of their connection; everything else may be reordered.
struct Faults {
  uint64_t seed = 0;
  double delay_probability = 0.0;         ///< of one operation; it then holds up those that must stay behind it
  int max_delay_polls = 0;                ///< polls of the peer; a delay is uniform in [1, max_delay_polls]
  double loss_of_link_probability = 0.0;  ///< of one operation; a put that meets it leaves a part of its bytes behind
};

/// Contexts of one process, joined by names ("" as address lets listen make one up). Deterministic; the bytes of a put
/// move when the *peer* polls, as late as the interface allows, so that whoever reuses memory too early is found out.
absl::StatusOr<std::unique_ptr<Context>> open(const OpenOptions& options);
absl::StatusOr<std::unique_ptr<Context>> open_with(const Faults& faults);

}  // namespace gradrail::transport::loopback
