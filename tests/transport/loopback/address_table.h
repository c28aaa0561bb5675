#pragma once

#include <deque>
#include <memory>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/mutex.h"
#include "tests/transport/loopback/link.h"

namespace gradrail::transport::loopback {

/// A name that accepts connections, and the links that its owner has not processed yet.
struct Port {
  explicit Port(End end) : owner(std::move(end)) {}
  const End owner;
  Mutex mutex;
  /// shared_ptr: both ends hold the link, and either may leave first.
  std::deque<std::shared_ptr<Link>> waiting ABSL_GUARDED_BY(mutex);
  bool closed ABSL_GUARDED_BY(mutex) = false;
};

/// Process-wide by nature: the table is this transport's network. Thread-safe.
/// ALREADY_EXISTS: name in use. An empty owner.name makes one up.
/// shared_ptr: a dial() may use the port while its owner unbinds it.
absl::StatusOr<std::shared_ptr<Port>> bind(End owner);
/// Frees the name and ends every link that waits there.
void unbind(Port& port);
/// UNAVAILABLE: no context listens there. shared_ptr: as Port::waiting.
/// Other errors  those of Network::connect().
absl::StatusOr<std::shared_ptr<Link>> dial(End from, const std::string& name, TimePoint deadline);

}  // namespace gradrail::transport::loopback
