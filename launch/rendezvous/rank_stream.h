#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "base/file_descriptor.h"
#include "gradrail/clock.h"
#include "launch/rendezvous/rendezvous.pb.h"

namespace gradrail::launch {

/// Interval of the messages that name the missing ranks.
inline constexpr auto kRankProgress = std::chrono::seconds(10);
/// A process that has not joined gets no more memory.
inline constexpr size_t kMaxHelloBytes = 64 << 10;

/// An end of the connection between the first rank and another rank. Each message is preceded by its length, 4 bytes,
/// little-endian. The connection ends when one of the two processes ends, or 20 s after the loss of its host.
/// Errors   UNAVAILABLE: the other rank has ended, or sent another message than expected. FAILED_PRECONDITION: the
///          first rank refused this one. DEADLINE_EXCEEDED: the other rank does not answer. After an error, all calls
///          return it: a late answer would be taken for the next one.
/// Threads  One.
class RankStream {
 public:
  /// The other rank's name is for errors.
  RankStream(FileDescriptor socket, std::string peer_name);

  absl::Status send(const proto::RankMessage& message, TimePoint deadline);
  absl::StatusOr<proto::RankMessage> receive(proto::RankMessage::ContentCase kind, TimePoint deadline);
  /// Reads what has arrived. Whether receive() would return at once.
  bool is_ready();
  /// The other end's receive() returns `reason`.
  void refuse(const std::string& reason);

  int fd() const { return socket_.get(); }
  /// The address of the other end.
  std::string peer_host() const;
  /// The other rank has joined: its messages may be larger than a hello.
  void set_joined(std::string peer_name);

 private:
  absl::Status write(const proto::RankMessage& message, TimePoint deadline);
  absl::Status wait(short events, TimePoint deadline);
  void fill();
  bool has_message() const;
  absl::Status lost() const;

  const FileDescriptor socket_;
  std::string peer_name_;
  size_t max_bytes_ = kMaxHelloBytes;
  std::string arrived_;  ///< bytes that receive() has not returned
  absl::Status failed_;  ///< first error
};
using RankStreamPtr = std::unique_ptr<RankStream>;

}  // namespace gradrail::launch
