#pragma once

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "base/clock.h"
#include "nlohmann/json.hpp"

namespace gradrail::ps {

/// A connection between two processes of a run: JSON texts, each after its length. The rendezvous of launchers and the
/// benchmarks over several hosts use it.
/// Threads  One.
class JsonLink {
 public:
  /// The largest message has sixteen thousand marks as text.
  static constexpr uint32_t kMostBytes = 64 << 20;

  explicit JsonLink(int fd) : fd_(fd) {}
  JsonLink(JsonLink&& other) noexcept;
  JsonLink& operator=(JsonLink&&) = delete;
  ~JsonLink();

  /// Repeats until a listener answers. Errors  DEADLINE_EXCEEDED. INVALID_ARGUMENT: not an address.
  static absl::StatusOr<JsonLink> connect(const std::string& address, TimePoint deadline);

  /// Errors  UNAVAILABLE: the other end is gone. INVALID_ARGUMENT: it sent something else. DEADLINE_EXCEEDED.
  absl::Status send(const nlohmann::json& message, TimePoint deadline);
  absl::StatusOr<nlohmann::json> receive(TimePoint deadline, uint32_t most_bytes = kMostBytes);

  /// The host that this end has in the connection, as others can reach it.
  std::string local_host() const;

 private:
  absl::Status move(char* bytes, size_t count, bool out, TimePoint deadline);
  int fd_;
};

/// Accepts connections at one address.
class JsonListener {
 public:
  /// Errors  INVALID_ARGUMENT, FAILED_PRECONDITION: names the address and why.
  static absl::StatusOr<JsonListener> open(const std::string& address);
  JsonListener(JsonListener&& other) noexcept;
  JsonListener& operator=(JsonListener&&) = delete;
  ~JsonListener();
  absl::StatusOr<JsonLink> accept(TimePoint deadline);

 private:
  explicit JsonListener(int fd) : fd_(fd) {}
  int fd_;
};

}  // namespace gradrail::ps
