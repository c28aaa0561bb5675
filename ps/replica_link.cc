#include "ps/replica_link.h"

#include <grpcpp/grpcpp.h>

#include <algorithm>
#include <utility>

#include "base/status.h"
#include "fmt/format.h"
#include "ps/control_call.h"
#include "ps/control_status.h"
#include "ps/training.h"
#include "spdlog/spdlog.h"
#include "transport/negotiate.h"
#include "transport/registry.h"

namespace gradrail::ps {
namespace {

constexpr auto kEvery = std::chrono::milliseconds(500);
/// A standby that comes up, or a shard that could not connect, is looked at again after this.
constexpr auto kEveryWhileMissing = std::chrono::milliseconds(100);
constexpr auto kCallDeadline = std::chrono::seconds(2);
/// A host that refuses connections lives, and the process on it does not.
constexpr auto kRefusedLimit = std::chrono::milliseconds(300);
constexpr auto kSettleDeadline = std::chrono::seconds(10);

std::unique_ptr<proto::Control::Stub> open_stub(const std::string& address,
                                                const std::shared_ptr<grpc::ChannelCredentials>& credentials) {
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  return proto::Control::NewStub(grpc::CreateCustomChannel(address, credentials, arguments));
}

bool was_refused(const absl::Status& why) {
  return absl::IsUnavailable(why) && message_of(why).find("refused") != std::string_view::npos;
}

/// The standby shard's endpoints in our order of preference, as far as they can be reached from this host.
std::vector<Shard::Endpoint> usable(const std::vector<std::string>& order, const proto::JoinReply::Shard& shard,
                                    const std::string& host_id) {
  std::vector<transport::PeerTransport> theirs;
  for (const auto& endpoint : shard.endpoints()) theirs.push_back({endpoint.transport(), ""});
  std::vector<Shard::Endpoint> found;
  for (const transport::Candidate& candidate : transport::weigh(order, theirs, transport::host_id(), host_id)) {
    for (const auto& endpoint : shard.endpoints()) {
      if (candidate.refused.empty() && endpoint.transport() == candidate.name) {
        found.push_back({candidate.name, endpoint.address(), ""});
      }
    }
  }
  return found;
}

}  // namespace

ReplicaLink::ReplicaLink(Options options, std::vector<std::unique_ptr<Shard>>& shards)
    : options_(std::move(options)),
      shards_(shards),
      stub_(open_stub(options_.address, options_.credentials)),
      prover_(options_.secret),
      thread_([this] { run(); }) {}

ReplicaLink::~ReplicaLink() { stop(); }

void ReplicaLink::stop() {
  {
    std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_all();
  if (thread_.joinable()) thread_.join();
}

std::string ReplicaLink::state() {
  std::lock_guard lock(mutex_);
  if (level_shards_ >= shards_.size()) return "level";
  return present_ ? "not level yet" : "not there";
}

void ReplicaLink::start() {
  {
    std::lock_guard lock(mutex_);
    serves_ = true;
  }
  changed_.notify_all();
}

void ReplicaLink::end() {
  if (!thread_.joinable()) return;
  stop();
  if (!serves_) return;
  proto::MirrorRequest request = options_.mirrored();
  ask(request).status().IgnoreError();  // it finds out by itself that nobody is there
}

void ReplicaLink::settle() {
  std::unique_lock lock(mutex_);
  if (!present_ || stopping_) return;
  const uint64_t target = ++wanted_;
  changed_.notify_all();
  changed_.wait_for(lock, kSettleDeadline, [&] { return done_ >= target || !present_ || stopping_; });
}

void ReplicaLink::shard_says(const std::string& cause) {
  std::lock_guard lock(mutex_);
  if (cause.empty()) {
    ++level_shards_;
  } else {
    level_shards_ = 0;
    lost_ = cause;
    anew_ = true;
  }
  ++wanted_;  // look at it at once
  changed_.notify_all();
}

void ReplicaLink::run() {
  pthread_setname_np(pthread_self(), "gradrail-mirror");
  bool said_level = false;
  while (true) {
    {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [&] { return stopping_ || serves_; });
    }
    uint64_t turn = 0;
    {
      std::lock_guard lock(mutex_);
      turn = wanted_;  // first: whatever is wanted from now on may not be in the request
    }
    proto::MirrorRequest request = options_.mirrored();
    {
      std::lock_guard lock(mutex_);
      if (stopping_) return;
      request.set_anew(anew_ || generation_ != request.generation());
    }
    const TimePoint asked = Clock::now();
    const absl::StatusOr<proto::MirrorReply> reply = ask(request);
    reply.ok() ? heard(request, *reply) : not_heard(reply.status(), asked);
    std::unique_lock lock(mutex_);
    if (reply.ok()) done_ = turn;
    changed_.notify_all();
    const bool is_level = level_shards_ >= shards_.size();
    if (is_level && !said_level && options_.console) {
      options_.console(fmt::format("the standby at {} has everything", options_.address));
    }
    said_level = is_level;
    changed_.wait_for(lock, anew_ ? Duration(kEveryWhileMissing) : Duration(kEvery),
                      [&] { return stopping_ || wanted_ != turn; });
  }
}

absl::StatusOr<proto::MirrorReply> ReplicaLink::ask(proto::MirrorRequest& request) {
  request.set_number(++number_);
  grpc::Status status;
  proto::DescribeReply described;
  if (!introduced_) status = introduce(*stub_, prover_, kCallDeadline, described);
  introduced_ = status.ok();
  proto::MirrorReply reply;
  if (introduced_) {
    status = call(*stub_, prover_, &proto::Control::Stub::Mirror, "Mirror", kCallDeadline, request, reply);
  }
  if (status.ok()) return reply;
  introduced_ = false;  // it may be another process by now
  // A channel that failed once looks again only after 5 s, whatever it was told about backing off.
  if (status.error_code() == grpc::StatusCode::UNAVAILABLE) stub_ = open_stub(options_.address, options_.credentials);
  return from_grpc(status);
}

void ReplicaLink::heard(const proto::MirrorRequest& request, const proto::MirrorReply& reply) {
  failing_since_ = TimePoint::max();
  if (reply.keeps()) return;  // and we do not serve before it has found out whether that is needed
  if (reply.taken_over()) {
    {
      std::lock_guard lock(mutex_);
      serves_ = present_ = false;
    }
    options_.replaced();
    has_asked_ = true;
    return;
  }
  has_asked_ = true;
  const bool other = std::exchange(process_, reply.process()) != reply.process();
  bool anew = false;
  {
    std::lock_guard lock(mutex_);
    present_ = true;
    if (!anew_) said_missing_ = false;
    anew = request.anew() && request.generation() > 0;
    anew_ = anew_ || other;
    if (anew) anew_ = false;
  }
  generation_ = request.generation();
  if (anew) attach(reply);
}

/// The standby knows that it has nothing: whatever the shards hold may leave.
void ReplicaLink::attach(const proto::MirrorReply& reply) {
  {
    std::lock_guard lock(mutex_);
    level_shards_ = 0;
    if (!lost_.empty()) spdlog::warn("the connection to the standby was lost ({}); it is made level anew", lost_);
    lost_.clear();
  }
  std::string refused;
  for (size_t i = 0; i < shards_.size(); ++i) {
    shards_[i]->go_alone();
    if (static_cast<int>(i) >= reply.shards_size()) {
      refused = fmt::format("it has {} shards, {} are needed", reply.shards_size(), shards_.size());
      break;
    }
    const absl::Status connected =
        shards_[i]->replicate_to(usable(options_.transports, reply.shards(static_cast<int>(i)), reply.host_id()),
                                 data_key(options_.secret, reply.token()));
    if (!connected.ok()) refused = message_of(connected);
  }
  if (refused.empty()) return;
  std::lock_guard lock(mutex_);
  anew_ = true;
  if (!std::exchange(said_missing_, true)) {
    spdlog::warn("not replicated: the shards cannot reach the standby at {}: {}", options_.address, refused);
  }
}

void ReplicaLink::not_heard(const absl::Status& why, TimePoint asked) {
  const bool is_first = failing_since_ == TimePoint::max();
  // A call during which this process stood still has lasted longer, and says nothing about the standby.
  failing_since_ = std::min(failing_since_, std::max(asked, Clock::now() - kCallDeadline));
  const bool is_none_of_ours = absl::IsFailedPrecondition(why) || absl::IsUnauthenticated(why);
  if (is_none_of_ours) options_.refused(why);
  const bool is_sure = was_refused(why) || is_none_of_ours;
  if (is_sure) has_asked_ = true;
  if (Clock::now() - failing_since_ < (is_sure ? Duration(kRefusedLimit) : options_.silence_limit)) return;
  if (is_first && !is_sure) return;
  has_asked_ = true;
  bool was_present = false, say_it = false;
  {
    std::lock_guard lock(mutex_);
    was_present = std::exchange(present_, false);
    anew_ = true;
    level_shards_ = 0;
    lost_.clear();
    say_it = !std::exchange(is_none_of_ours ? said_refused_ : said_missing_, true);
  }
  if (was_present) {
    for (const auto& shard : shards_) shard->go_alone();
  }
  if (!say_it) return;
  if (was_present) {
    spdlog::warn("the standby at {} was lost ({}); the run goes on without one until it is back", options_.address,
                 std::string(message_of(why)));
  } else {
    spdlog::warn("not replicated: the standby at {} is not there yet ({})", options_.address,
                 std::string(message_of(why)));
  }
}

}  // namespace gradrail::ps
