#pragma once

#include <memory>
#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "base/mutex.h"
#include "gradrail/clock.h"
#include "launch/rendezvous/rendezvous.pb.h"

namespace gradrail::launch {

/// Keepalive pings of both ends detect a host that has lost power.
inline constexpr int kRankPingMs = 5'000;
inline constexpr int kRankPingTimeoutMs = 20'000;
/// Interval of the messages that name the missing ranks.
inline constexpr auto kRankProgress = std::chrono::seconds(10);

/// An end of the stream between the first rank and another rank. It ends when one of the two processes ends.
/// Errors   UNAVAILABLE: the other rank has ended, or sent another message than expected. FAILED_PRECONDITION: the
///          first rank refused this one. DEADLINE_EXCEEDED: the other rank does not answer. After an error, all calls
///          return it: a late answer would be taken for the next one.
/// Threads  One, beside those of gRPC.
class RankStream {
 public:
  absl::Status send(proto::RankMessage message, TimePoint deadline);
  absl::StatusOr<proto::RankMessage> receive(proto::RankMessage::ContentCase kind, TimePoint deadline);
  /// Ends the stream; gRPC then no longer uses this object. An error is the answer to a rank that joins.
  void end(const absl::Status& reason = absl::OkStatus());
  /// The other rank's name in errors.
  void set_peer_name(std::string name) { peer_name_ = std::move(name); }
  virtual ~RankStream() = default;

 protected:
  virtual void start_read(proto::RankMessage* message) = 0;
  virtual void start_write(const proto::RankMessage* message) = 0;
  virtual void cancel() = 0;
  // One of these is called once, while no write is under way. gRPC then makes its last callback.
  virtual void close(const absl::Status& reason) = 0;  ///< closed by this end
  virtual void release() = 0;                          ///< the other end has closed

  // Callbacks of gRPC.
  void note_read(bool ok);
  void note_written(bool ok);
  void note_done(const absl::Status& why);

  Mutex mutex_;
  ConditionVariable changed_;
  proto::RankMessage incoming_;
  bool done_ ABSL_GUARDED_BY(mutex_) = false;  ///< gRPC has made its last callback
  absl::Status why_ ABSL_GUARDED_BY(mutex_);   ///< status of the stream after its end

 private:
  absl::Status wait_sent(TimePoint deadline);
  absl::Status wait_arrived(TimePoint deadline);
  absl::Status lost(MutexLock& lock) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status late() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool begins_end() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  proto::RankMessage outgoing_;
  std::string peer_name_;
  absl::Status failed_;                              ///< first error, in the caller's thread
  bool arrived_ ABSL_GUARDED_BY(mutex_) = false;     ///< incoming_ has a message
  bool writing_ ABSL_GUARDED_BY(mutex_) = false;     ///< gRPC reads outgoing_
  bool is_written_ ABSL_GUARDED_BY(mutex_) = false;  ///< gRPC has accepted the last message
  bool broken_ ABSL_GUARDED_BY(mutex_) = false;      ///< no read or write starts any more
  bool finished_ ABSL_GUARDED_BY(mutex_) = false;    ///< close() or release() was called
};

struct EndRankStream {
  void operator()(RankStream* stream) const {
    stream->end();
    delete stream;
  }
};
using RankStreamPtr = std::unique_ptr<RankStream, EndRankStream>;

/// The common part of grpc::ServerBidiReactor and grpc::ClientBidiReactor.
template <typename Reactor>
class ReactorStream : public Reactor, public RankStream {
 public:
  void OnReadDone(bool ok) override { note_read(ok); }
  void OnWriteDone(bool ok) override { note_written(ok); }

 protected:
  void start_read(proto::RankMessage* message) override { this->StartRead(message); }
  void start_write(const proto::RankMessage* message) override { this->StartWrite(message); }
};

/// "10.0.0.1" for "ipv4:10.0.0.1:2222", the notation of gRPC; "" for an address of another family.
std::string host_of_peer(const std::string& peer);

}  // namespace gradrail::launch
