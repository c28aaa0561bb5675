#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <utility>

#include "absl/status/statusor.h"
#include "base/file_descriptor.h"

namespace gradrail::bench {

/// The socket between the two processes of a benchmark, beside what is measured: set-up and turns.
/// Threads  One.
class PairLink {
 public:
  /// Two processes of this one; nothing may have been opened yet. The child, which serves, ends with its parent.
  static absl::StatusOr<PairLink> fork_two();
  /// "host:port"; waits for the connection.
  static absl::StatusOr<PairLink> listen(const std::string& where);
  static absl::StatusOr<PairLink> connect(const std::string& where);

  /// The one that measures and prints; the other answers.
  bool leads() const { return leads_; }

  absl::Status say(const std::string& text);
  /// Sends a failure. The hear() of the other process then returns this reason.
  void say_failure(const absl::Status& why);
  /// Receives a message. Calls `meanwhile` repeatedly, often at first and then every millisecond: the measured
  /// transport may need progress.
  /// Errors  UNAVAILABLE: the other end has ended, or has failed: its reason. DEADLINE_EXCEEDED.
  absl::StatusOr<std::string> hear(const std::function<void()>& meanwhile);

 private:
  absl::Status send_frame(std::string_view text, uint32_t flags);

  PairLink(FileDescriptor fd, bool leads) : fd_(std::move(fd)), leads_(leads) {}

  FileDescriptor fd_;
  bool leads_ = false;
};

}  // namespace gradrail::bench
