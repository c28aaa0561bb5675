#pragma once

#include <cstddef>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "base/file_descriptor.h"
#include "gradrail/clock.h"
#include "worker/publish/message.h"

namespace gradrail::publish {

/// The reader's end of one connection. Each function that takes a deadline may be called again after
/// DEADLINE_EXCEEDED: it continues where it was.
/// Errors   UNAVAILABLE: the connection is lost; open another one. DATA_LOSS: not the messages of a publisher. ABORTED
///          and others: the reason that the publisher gave for the end.
/// Threads  One at a time.
class PublisherLink {
 public:
  /// Starts to connect. Errors  UNAVAILABLE, INVALID_ARGUMENT: the address.
  static absl::StatusOr<std::unique_ptr<PublisherLink>> open(const std::string& address, std::string secret,
                                                             Duration quiet_limit);

  /// Connects, and authenticates both ends.
  absl::Status greet(TimePoint deadline);
  /// The message of the publisher; valid after greet().
  const Welcome& welcome() const { return welcome_; }

  absl::Status request(const Request& request);
  bool has_request() const { return has_request_; }
  /// Waits for the version that was requested.
  absl::StatusOr<VersionHeader> read_version(TimePoint deadline);
  /// Reads up to `bytes`, at least one.
  absl::StatusOr<size_t> read_some(std::byte* to, size_t bytes, TimePoint deadline);

 private:
  enum class State : uint8_t { connecting, challenge, welcome, ready };

  PublisherLink(FileDescriptor socket, std::string address, std::string secret, Duration quiet_limit);

  absl::Status lost(const std::string& why) const;
  absl::Status finish_connect(TimePoint deadline);
  absl::Status send_all(const std::string& text);
  /// Fills input_ up to `bytes`.
  absl::Status fill(size_t bytes, TimePoint deadline);
  /// The payload of the next frame but `idle`. An `end` is its status.
  absl::StatusOr<std::string> read_frame(FrameType expected, TimePoint deadline);

  const FileDescriptor socket_;
  const std::string address_;
  const std::string secret_;
  const Duration quiet_limit_;
  State state_ = State::connecting;
  std::string input_;
  std::string key_;
  Welcome welcome_;
  bool has_request_ = false;
  uint64_t versions_ = 0;
  TimePoint heard_ = Clock::now();
};

}  // namespace gradrail::publish
