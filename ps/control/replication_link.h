#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/statusor.h"
#include "base/mutex.h"
#include "gradrail/clock.h"
#include "ps/control/shard_set.h"

namespace gradrail::ps {

class ControlChannel;
class ControlDialer;
namespace proto {
class ReplicateReply;
class ReplicateRequest;
}  // namespace proto

/// The primary's end of the control plane towards its backup. Sends the state of the run twice a second and after each
/// change, connects the shards, and decides the meaning of a lost backup. Either the backup has exited, then the run
/// continues without it; or it has taken over, then this task's run ends. Until that is decided the shards hold their
/// answers back.
/// Threads  Any thread; it owns one, which calls the functions of Options.
class ReplicationLink {
 public:
  struct Options {
    std::shared_ptr<ControlDialer> dialer;
    std::string secret;                                          ///< secret of the job; "": none
    std::function<absl::StatusOr<std::string>()> address;        ///< address of the peer; the link's thread calls it
    std::vector<std::string> transports;                         ///< sorted by preference
    Duration heartbeat_timeout = std::chrono::seconds(4);        ///< a backup is lost after this
    std::function<void(proto::ReplicateRequest&)> fill_message;  ///< writes the present state into an empty message
    std::function<void()> replaced;                              ///< the backup has taken over: no message follows
    std::function<void(const absl::Status&)> refused;  ///< the replication peer cannot be the backup of this task
    std::function<void(const std::string&)> console;   ///< may be empty
  };
  ReplicationLink(Options options, const ShardSet& shards);
  ~ReplicationLink();

  /// Starts the thread. Once, before the other functions.
  /// Errors  RESOURCE_EXHAUSTED: the kernel refused a thread.
  absl::Status start_thread();

  /// Begins to serve: at the start of this task, or because it has taken over.
  void start();

  /// Waits until the backup has the present state, or there is none.
  void wait_for_backup();
  /// Reports from a shard's thread that the shard's backup is level (""), or was lost.
  void on_shard_report(const std::string& cause);
  /// The run is over: sends the last state and stops.
  void end();
  /// Stops without a message. Before the shards are destroyed.
  void stop();
  /// Whether the replication peer has answered once, or is absent. Takes no lock.
  bool has_asked() const { return has_asked_; }
  /// Whether this task has lost all its workers. If the backup is silent as well, this task may be the one that the
  /// network has isolated, and the backup may serve.
  void set_deserted(bool deserted);
  /// Whether this task is isolated: from the loss of all to the answer of the backup. Without an answer it ends one
  /// silence limit after the first call, since a call shows that the network has returned. Takes no lock.
  bool is_isolated();
  /// State of the backup for people: "level", or what is missing.
  std::string state();

 private:
  void run();
  bool wait_for_start();
  void send_state();
  absl::StatusOr<proto::ReplicateReply> ask(proto::ReplicateRequest& request);
  void heard(const proto::ReplicateRequest& request, const proto::ReplicateReply& reply);
  void not_heard(const absl::Status& why, TimePoint asked);
  void begin_isolation();
  bool remains_isolated();
  void attach(const proto::ReplicateReply& reply);
  std::string connect_shards(const proto::ReplicateReply& reply);

  const Options options_;
  const ShardSet& shards_;

  std::atomic<bool> has_asked_ = false;
  std::atomic<bool> is_isolated_ = false;
  std::atomic<bool> is_contacted_ = false;  ///< a call has arrived since the isolation began

  Mutex mutex_;
  ConditionVariable changed_;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  bool serves_ ABSL_GUARDED_BY(mutex_) = false;
  bool present_ ABSL_GUARDED_BY(mutex_) = false;     ///< the backup has answered, and was not lost since
  bool reconnect_ ABSL_GUARDED_BY(mutex_) = true;    ///< the shards have to be connected
  uint64_t wanted_ ABSL_GUARDED_BY(mutex_) = 0;      ///< rounds that callers have requested
  uint64_t done_ ABSL_GUARDED_BY(mutex_) = 0;        ///< rounds that the backup has answered
  size_t level_shards_ ABSL_GUARDED_BY(mutex_) = 0;  ///< shards with a level backup
  bool deserted_ ABSL_GUARDED_BY(mutex_) = false;    ///< set_deserted()
  std::string lost_ ABSL_GUARDED_BY(mutex_);         ///< cause that a shard has reported

  // The link's thread uses these members.
  std::string address_;                      ///< address of the last attempt to open a connection; "": none
  std::unique_ptr<ControlChannel> channel_;  ///< null until a connection is open
  uint64_t number_ = 0;                      ///< number of the last message
  uint64_t generation_ = 0;                  ///< generation for which the shards are connected
  uint64_t process_ = 0;                     ///< process of the backup
  bool said_missing_ = false;
  bool said_refused_ = false;
  bool said_level_ = false;
  TimePoint failing_since_ = TimePoint::max();
  TimePoint contacted_at_ = TimePoint::max();  ///< time of the first contact of an isolated task

  std::thread thread_;  ///< last
};

}  // namespace gradrail::ps
