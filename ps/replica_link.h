#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "ps/call_proof.h"
#include "ps/control.grpc.pb.h"
#include "ps/shard.h"

namespace grpc {
class ChannelCredentials;
}

namespace gradrail::ps {

/// A ps task's end of the control plane towards its partner, from the moment on that this task serves: says who is
/// here, has the shards connected, and decides what a standby that was lost means. It may have died, then the run goes
/// on without it; or it has taken over, then this task's run is at an end. As long as that is not known the shards hold
/// their answers back. Threads  Any thread; it has one of its own.
class ReplicaLink {
 public:
  struct Options {
    std::shared_ptr<grpc::ChannelCredentials> credentials;
    std::string secret;                                ///< of the job; "": none
    std::string address;                               ///< of the partner
    std::vector<std::string> transports;               ///< in order of preference
    Duration silence_limit = std::chrono::seconds(4);  ///< then it is lost
    std::function<proto::MirrorRequest()> mirrored;    ///< what the standby is to know now
    std::function<void()> replaced;                    ///< told when it has taken over; nothing more is said to it then
    std::function<void(const absl::Status&)> refused;  ///< told when it says that it is none of ours
    std::function<void(const std::string&)> console;   ///< may be empty
  };
  ReplicaLink(Options options, std::vector<std::unique_ptr<Shard>>& shards);
  ~ReplicaLink();

  /// This task serves. At first, or when it has been the standby.
  void start();

  /// Until the standby knows what is true at this moment, or there is none.
  void settle();
  /// From a shard's thread: it is level (""), or was lost.
  void shard_says(const std::string& cause);
  /// The run is over; tells the standby and ends.
  void end();
  /// Ends without a word. Before the shards do.
  void stop();
  /// Whether it has been asked once, and has answered or is not there.
  bool has_asked() const { return has_asked_; }
  /// For people: "level", or what is missing.
  std::string state();

 private:
  void run();
  absl::StatusOr<proto::MirrorReply> ask(proto::MirrorRequest& request);
  void heard(const proto::MirrorRequest& request, const proto::MirrorReply& reply);
  void not_heard(const absl::Status& why, TimePoint asked);
  void attach(const proto::MirrorReply& reply);

  const Options options_;
  std::vector<std::unique_ptr<Shard>>& shards_;

  std::atomic<bool> has_asked_ = false;

  std::mutex mutex_;
  std::condition_variable changed_;
  bool stopping_ = false;    ///< under mutex_
  bool serves_ = false;      ///< under mutex_
  bool present_ = false;     ///< under mutex_: it has answered, and was not lost since
  bool anew_ = true;         ///< under mutex_: shards are to be connected
  uint64_t wanted_ = 0;      ///< under mutex_: rounds that somebody waits for
  uint64_t done_ = 0;        ///< under mutex_
  size_t level_shards_ = 0;  ///< under mutex_
  std::string lost_;         ///< under mutex_: what a shard said

  // Its thread.
  std::unique_ptr<proto::Control::Stub> stub_;
  CallProver prover_;
  bool introduced_ = false;  ///< to the standby's process
  uint64_t number_ = 0;      ///< of the last message
  uint64_t generation_ = 0;  ///< that the shards are connected for
  uint64_t process_ = 0;     ///< of the standby
  bool said_missing_ = false;
  bool said_refused_ = false;
  TimePoint failing_since_ = TimePoint::max();

  std::thread thread_;  ///< last
};

}  // namespace gradrail::ps
