#pragma once

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "base/clock.h"
#include "nlohmann/json.hpp"

namespace gradrail::bench {

/// A connection between two processes of a run: JSON texts with their lengths before them.
/// Threads  One.
class Link {
 public:
  /// Marks of sixteen thousand moments in words; nobody sends more.
  static constexpr uint32_t kMostBytes = 64 << 20;

  explicit Link(int fd) : fd_(fd) {}
  Link(Link&& other) noexcept;
  Link& operator=(Link&&) = delete;
  ~Link();

  /// Tries until somebody listens there. Errors  DEADLINE_EXCEEDED. INVALID_ARGUMENT: not an address.
  static absl::StatusOr<Link> connect(const std::string& address, TimePoint deadline);

  /// Errors  UNAVAILABLE: the other end is gone. INVALID_ARGUMENT: it sent something else. DEADLINE_EXCEEDED.
  absl::Status send(const nlohmann::json& message, TimePoint deadline);
  absl::StatusOr<nlohmann::json> receive(TimePoint deadline, uint32_t most_bytes = kMostBytes);

  /// The host that this end has in the connection, as others can reach it.
  std::string local_host() const;

 private:
  absl::Status move(char* bytes, size_t count, bool out, TimePoint deadline);
  int fd_;
};

/// Where others come to.
class Listener {
 public:
  /// Errors  INVALID_ARGUMENT, FAILED_PRECONDITION: names the address and why.
  static absl::StatusOr<Listener> open(const std::string& address);
  Listener(Listener&& other) noexcept;
  Listener& operator=(Listener&&) = delete;
  ~Listener();
  absl::StatusOr<Link> accept(TimePoint deadline);

 private:
  explicit Listener(int fd) : fd_(fd) {}
  int fd_;
};

}  // namespace gradrail::bench
