#include "bench/members/stub_members.h"

#include <grpcpp/grpcpp.h>

#include <algorithm>
#include <chrono>
#include <queue>
#include <thread>
#include <utility>

#include "base/mutex.h"
#include "base/status.h"
#include "fmt/format.h"
#include "ps/admission/channel.h"
#include "ps/protocol/control.grpc.pb.h"
#include "ps/protocol/control_call.h"
#include "ps/protocol/control_channel.h"
#include "ps/protocol/control_status.h"
#include "ps/protocol/training.h"

namespace gradrail::bench {
namespace {

constexpr uint64_t kElements = 1024;   // elements of the model
constexpr uint64_t kGroup = 1;         // group of server processes: any number that all members share
constexpr uint64_t kIncarnations = 1;  // incarnation of member 0; the next ones follow

std::string task_at(uint32_t member, const std::string& server) {
  return fmt::format("member {} at {}", member, server);
}

ps::proto::JoinRequest join_request(uint32_t member, uint32_t server, size_t servers) {
  ps::proto::JoinRequest request;
  request.set_protocol_version(ps::kProtocolVersion);
  request.mutable_member()->set_task_index(member);
  request.mutable_member()->set_incarnation(kIncarnations + member);
  request.set_worker_name(fmt::format("stub:{}", member));
  ps::to_proto({{"w", {kElements}}}, request);
  *request.mutable_training() = ps::to_proto(ps::Training{.bucket_bytes = 1024});
  request.set_first_shard(server);
  request.set_total_shards(static_cast<uint32_t>(servers));
  request.set_group(kGroup);
  return request;
}

/// Returns a report like that of a worker in its steps.
ps::proto::WorkerReport report() {
  ps::proto::WorkerReport report;
  report.set_exchanges(1'000'000);
  report.set_global_step(1'000'000);
  report.set_exchanges_per_s(100.0);
  report.set_p50_s(0.01);
  report.set_p99_s(0.02);
  report.set_path("tcp");
  return report;
}

}  // namespace

/// The heartbeat of one member at one server.
class StubMembers::Heartbeat final : public grpc::ClientBidiReactor<ps::proto::Ping, ps::proto::HeartbeatReply> {
 public:
  Heartbeat(StubMembers& all, const std::shared_ptr<grpc::Channel>& channel, const ps::proto::Member& member)
      : all_(all), stub_(ps::proto::Control::NewStub(channel)) {
    *ping_.mutable_member() = member;
    *ping_.mutable_report() = report();
    context_.AddMetadata(ps::kMemberHeader, member.SerializeAsString());
  }

  grpc::Status join(const ps::proto::JoinRequest& request, Duration timeout) {
    ps::proto::JoinReply reply;
    return ps::call(*stub_, &ps::proto::Control::Stub::Join, timeout, request, reply);
  }
  void start() {
    stub_->async()->Heartbeat(&context_, this);
    AddHold();  // the timer writes outside of reactions
    StartRead(&reply_);
    StartWrite(&ping_);
    StartCall();
  }
  void ping() { StartWrite(&ping_); }
  /// No ping() follows.
  void cancel() {
    context_.TryCancel();
    RemoveHold();
  }
  void wait_done() {
    MutexLock lock(mutex_);
    while (!is_done_) done_.wait(lock);
  }

  void OnReadDone(bool ok) override;
  void OnDone(const grpc::Status&) override {
    ++all_.lost_heartbeats_;
    const MutexLock lock(mutex_);
    is_done_ = true;
    done_.notify_all();
  }

 private:
  StubMembers& all_;
  const std::unique_ptr<ps::proto::Control::Stub> stub_;
  grpc::ClientContext context_;
  ps::proto::Ping ping_;
  ps::proto::HeartbeatReply reply_;
  Mutex mutex_;
  ConditionVariable done_;
  bool is_done_ ABSL_GUARDED_BY(mutex_) = false;
};

/// Sends the pings of all members when they are due.
class StubMembers::Timer {
 public:
  Timer() : thread_([this] { run(); }) {}
  ~Timer() { stop(); }
  /// Sends no further ping. A reply may still call ping_at().
  void stop() {
    {
      const MutexLock lock(mutex_);
      is_ending_ = true;
    }
    changed_.notify_all();
    if (thread_.joinable()) thread_.join();
  }
  void ping_at(TimePoint when, Heartbeat* heartbeat) {
    bool is_next = false;
    {
      const MutexLock lock(mutex_);
      is_next = due_.empty() || when < due_.top().first;
      due_.emplace(when, heartbeat);
    }
    if (is_next) changed_.notify_all();
  }

 private:
  void run() {
    MutexLock lock(mutex_);
    while (!is_ending_) {
      const TimePoint next = due_.empty() ? Clock::now() + std::chrono::seconds(1) : due_.top().first;
      if (due_.empty() || next > Clock::now()) {
        changed_.wait_until(lock, next);
        continue;
      }
      Heartbeat* const heartbeat = due_.top().second;
      due_.pop();
      heartbeat->ping();
    }
  }

  using Due = std::pair<TimePoint, Heartbeat*>;
  Mutex mutex_;
  ConditionVariable changed_;
  bool is_ending_ ABSL_GUARDED_BY(mutex_) = false;
  std::priority_queue<Due, std::vector<Due>, std::greater<>> due_ ABSL_GUARDED_BY(mutex_);
  std::thread thread_;
};

void StubMembers::Heartbeat::OnReadDone(bool ok) {
  if (!ok) return;
  ++all_.answered_pings_;
  const uint32_t interval_us = reply_.next_ping_us();
  for (uint32_t seen = all_.interval_us_; seen < interval_us;)
    all_.interval_us_.compare_exchange_weak(seen, interval_us);
  StartRead(&reply_);
  all_.timer_->ping_at(Clock::now() + std::chrono::microseconds(interval_us), this);
}

StubMembers::StubMembers(Options options) : options_(std::move(options)), timer_(std::make_unique<Timer>()) {
  heartbeats_.resize(options_.count * options_.servers.size());
}

StubMembers::~StubMembers() {
  timer_->stop();
  for (auto& heartbeat : heartbeats_) {
    if (heartbeat != nullptr) heartbeat->cancel();
  }
  for (auto& heartbeat : heartbeats_) {
    if (heartbeat != nullptr) heartbeat->wait_done();
  }
}

absl::Status StubMembers::join_one(uint32_t member, TimePoint deadline) {
  for (uint32_t i = 0; i < options_.servers.size(); ++i) {
    const std::string& server = options_.servers[i];
    const auto channel = ps::open_channel(server, grpc::InsecureChannelCredentials(), "", {}, deadline - Clock::now());
    if (!channel.ok())
      return absl::Status(channel.status().code(),
                          fmt::format("{}: {}", task_at(member, server), message_of(channel.status())));
    const ps::proto::JoinRequest request = join_request(member, i, options_.servers.size());
    auto heartbeat = std::make_unique<Heartbeat>(*this, *channel, request.member());
    if (const grpc::Status joined = heartbeat->join(request, deadline - Clock::now()); !joined.ok())
      return absl::UnavailableError(fmt::format("{}: {}", task_at(member, server), joined.error_message()));
    heartbeat->start();
    heartbeats_[member * options_.servers.size() + i] = std::move(heartbeat);
  }
  return absl::OkStatus();
}

absl::Status StubMembers::join(TimePoint deadline) {
  std::atomic<uint32_t> next = 0;
  Mutex mutex;
  absl::Status failed;
  std::vector<std::thread> threads;
  for (uint32_t i = 0; i < std::min(options_.at_once, options_.count); ++i) {
    threads.emplace_back([&] {
      for (uint32_t member = next++; member < options_.count; member = next++) {
        const absl::Status joined = join_one(member, deadline);
        if (joined.ok()) continue;
        const MutexLock lock(mutex);
        failed.Update(joined);
        return;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  return failed;
}

}  // namespace gradrail::bench
