#pragma once

#include <cstddef>
#include <deque>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "base/file_descriptor.h"
#include "gradrail/clock.h"
#include "worker/publish/message.h"
#include "worker/publish/version_store.h"

namespace gradrail::publish {

/// Counters over all readers.
struct ReaderTotals {
  uint64_t full_count = 0;
  uint64_t full_bytes = 0;
  uint64_t delta_count = 0;
  uint64_t delta_bytes = 0;
};

/// The publisher's end of one connection. It holds at most one version: the one that it sends.
/// Errors   After any error the connection must be closed. UNAVAILABLE: the reader left. DATA_LOSS: not a reader.
/// Threads  The thread of the server.
class ReaderLink {
 public:
  ReaderLink(FileDescriptor socket, std::string peer, const std::string& secret);

  int fd() const { return socket_.get(); }
  const std::string& peer() const { return peer_; }
  bool is_greeting() const { return state_ == State::greeting; }
  bool has_output() const { return !output_.empty(); }
  /// The events that the server polls for.
  short events() const;

  /// Reads one message, if it has arrived. `model` is the text of Welcome.
  absl::Status read(uint64_t run, const std::string& model);
  /// Sends what the socket takes, up to a limit, so that all readers progress.
  absl::Status write();
  /// Answers the request of a reader that waits, if there is a version for it.
  void answer(const VersionStore& store, ReaderTotals& totals);
  /// Ends a silence: a reader that waits expects a frame now and then.
  absl::Status check_time(Duration stall_limit, Duration idle_interval);
  /// Queues the end. Later input is ignored.
  void end(const absl::Status& reason);
  /// Whether the reader has received this version in whole, or has it already.
  bool is_at(const Digest& digest) const { return !has_output() && sent_ && *sent_ == digest; }
  bool is_ended() const { return state_ == State::ended; }
  /// Whether the end has arrived at the host of the reader, which may read it later: nothing is on its way.
  bool is_delivered() const;
  /// Whether the reader has closed the connection after the publisher has ended it.
  bool is_closed() const { return closed_; }

 private:
  enum class State : uint8_t { greeting, idle, waiting, ended };

  void queue(std::string text);
  absl::Status on_hello(std::string_view hello, uint64_t run, const std::string& model);
  /// The bytes of the next message of the reader.
  size_t expected() const { return state_ == State::greeting ? kHelloBytes : kRequestBytes; }

  const FileDescriptor socket_;
  const std::string peer_;
  const std::string secret_;
  const std::string nonce_;
  std::string key_;
  State state_ = State::greeting;
  std::string input_;
  std::deque<Piece> output_;
  size_t written_ = 0;  ///< bytes of the first piece
  std::optional<Request> request_;
  std::optional<Digest> sent_;  ///< the version that the reader has after the output
  uint64_t answers_ = 0;
  bool closed_ = false;
  TimePoint progress_ = Clock::now();  ///< the last byte in either direction
};

}  // namespace gradrail::publish
