#pragma once

#include <deque>
#include <memory>
#include <mutex>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "transport/loopback/link.h"

namespace gradrail::transport::loopback {

/// A name that accepts connections, and the links that its owner has not yet seen.
struct Port {
  explicit Port(End end) : owner(std::move(end)) {}
  const End owner;
  std::mutex mutex;
  std::deque<std::shared_ptr<Link>> waiting;
  bool closed = false;
};

/// Process-wide by nature: the table is this transport's network. Thread-safe.
/// ALREADY_EXISTS: name in use. An empty owner.name makes one up.
absl::StatusOr<std::shared_ptr<Port>> bind(End owner);
/// Frees the name and ends every link that waits there.
void unbind(Port& port);
/// UNAVAILABLE: no context listens there.
absl::StatusOr<std::shared_ptr<Link>> dial(End from, const std::string& name);

}  // namespace gradrail::transport::loopback
