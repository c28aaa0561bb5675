#pragma once

#include <cstdint>
#include <memory>

#include "absl/status/status.h"
#include "gradrail/clock.h"

namespace gradrail::transport::loopback {

struct End;
struct Link;

/// The network between the contexts in a whole-system simulation. Without one, an operation arrives immediately.
/// Threads  Those of the contexts.
class Network {
 public:
  virtual ~Network() = default;
  /// Identifies the task that opens a context now; End::place keeps it.
  virtual uint64_t place() = 0;
  /// Lets the link's first end reach the second one. May block until `deadline`.
  /// Errors  UNAVAILABLE, DEADLINE_EXCEEDED: the second end cannot be reached.
  virtual absl::Status connect(const std::shared_ptr<Link>& link, TimePoint deadline) = 0;
  /// Time at which an operation that is posted now can arrive. The network rings the doorbell of `to` at that time.
  virtual TimePoint arrival(const End& from, const End& to) = 0;
  /// Whether anything from `from` reaches `to` now. The network rings `to` when this becomes true.
  virtual bool passes(const End& from, const End& to) = 0;
};

/// Sets the network of all contexts that are opened from now on; null: none. It outlives them.
void use_network(Network* network);
Network* network();

}  // namespace gradrail::transport::loopback
