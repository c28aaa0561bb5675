#include "ps/control/replication_link.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "base/log.h"
#include "base/net_address.h"
#include "base/resource_limits.h"
#include "base/status.h"
#include "fmt/format.h"
#include "ps/protocol/control.pb.h"
#include "ps/protocol/control_channel.h"
#include "ps/protocol/control_status.h"
#include "ps/protocol/mac.h"
#include "transport/negotiate.h"
#include "transport/registry.h"

namespace gradrail::ps {
namespace {

constexpr auto kEvery = std::chrono::milliseconds(500);  // several messages within the shortest silence limit
/// Interval of rounds while a backup starts, or after a shard could not connect.
constexpr auto kEveryWhileMissing = std::chrono::milliseconds(100);
constexpr auto kCallDeadline = std::chrono::seconds(2);
/// A host that refuses connections is up, so the process on it has exited.
constexpr auto kRefusedLimit = std::chrono::milliseconds(300);
// The limit is longer than the silence limit of a backup in the usual setting: the loss is then decided.
constexpr auto kBackupDeadline = std::chrono::seconds(10);

bool was_refused(const absl::Status& why) {
  // The status has no errno.
  return absl::IsUnavailable(why) && message_of(why).find("refused") != std::string_view::npos;
}

/// Endpoints of a backup's shard that this host can reach, in order of preference. `address`: of the backup.
std::vector<Shard::Endpoint> usable(const std::vector<std::string>& order, const proto::JoinReply::Shard& shard,
                                    const std::string& host_id, const std::string& address) {
  std::vector<transport::PeerTransport> theirs;
  for (const auto& endpoint : shard.endpoints()) theirs.push_back({endpoint.transport(), ""});
  std::vector<Shard::Endpoint> found;
  for (const transport::Candidate& candidate :
       transport::rank_candidates(order, theirs, transport::host_id(), host_id)) {
    for (const auto& endpoint : shard.endpoints()) {
      if (candidate.refused.empty() && endpoint.transport() == candidate.name) {
        found.push_back({candidate.name, with_scope_of(address, endpoint.address()), ""});
      }
    }
  }
  return found;
}

}  // namespace

ReplicationLink::ReplicationLink(Options options, const ShardSet& shards)
    : options_(std::move(options)), shards_(shards) {}

absl::Status ReplicationLink::start_thread() {
  GRADRAIL_ASSIGN_OR_RETURN(thread_, gradrail::start_thread("of replication", [this] { run(); }));
  return absl::OkStatus();
}

ReplicationLink::~ReplicationLink() { stop(); }

void ReplicationLink::stop() {
  {
    MutexLock lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_all();
  // end() and the destructor both call this function.
  if (thread_.joinable()) thread_.join();
}

std::string ReplicationLink::state() {
  MutexLock lock(mutex_);
  if (level_shards_ >= shards_.size()) return "level";
  return present_ ? "not level yet" : "not there";
}

void ReplicationLink::start() {
  {
    MutexLock lock(mutex_);
    serves_ = true;
  }
  changed_.notify_all();
}

void ReplicationLink::end() {
  if (!thread_.joinable()) return;
  stop();
  {
    MutexLock lock(mutex_);
    if (!serves_) return;
  }
  // The thread has ended, so this one may use its fields.
  proto::ReplicateRequest request;
  options_.fill_message(request);
  ask(request).status().IgnoreError();  // a backup without this message finds the primary lost, and its run over
}

void ReplicationLink::wait_for_backup() {
  MutexLock lock(mutex_);
  // There is no copy to wait for without a backup.
  if (!present_ || stopping_) return;
  // A round that began before this call may lack the state, so that the next one counts.
  const uint64_t target = ++wanted_;
  changed_.notify_all();
  const TimePoint deadline = Clock::now() + kBackupDeadline;
  while (done_ < target && present_ && !stopping_) {
    // The end of the wait is no error: the caller checks with check_serving() whether it may answer.
    if (!changed_.wait_until(lock, deadline)) return;
  }
}

void ReplicationLink::on_shard_report(const std::string& cause) {
  MutexLock lock(mutex_);
  if (cause.empty()) {
    ++level_shards_;
  } else {
    level_shards_ = 0;
    // A backup takes over with all shards or with none: one loss makes the whole copy begin again.
    lost_ = cause;
    reconnect_ = true;
  }
  ++wanted_;  // the thread reacts immediately
  changed_.notify_all();
}

void ReplicationLink::set_deserted(bool deserted) {
  MutexLock lock(mutex_);
  if (deserted && !deserted_ && serves_ && !present_) begin_isolation();
  deserted_ = deserted;
}

void ReplicationLink::begin_isolation() {
  is_contacted_ = false;
  is_isolated_ = true;
}

bool ReplicationLink::is_isolated() {
  if (!is_isolated_) return false;
  is_contacted_ = true;
  return true;
}

/// False when the link stops.
bool ReplicationLink::wait_for_start() {
  MutexLock lock(mutex_);
  while (!stopping_ && !serves_) changed_.wait(lock);
  return !stopping_;
}

void ReplicationLink::run() {
  pthread_setname_np(pthread_self(), "gradrail-backup");
  while (wait_for_start()) send_state();
}

/// Runs one round: a message, its answer, and the wait for the next round.
void ReplicationLink::send_state() {
  uint64_t turn = 0;
  {
    MutexLock lock(mutex_);
    turn = wanted_;  // set before the message is written: the message may lack changes requested from now on
  }
  proto::ReplicateRequest request;
  options_.fill_message(request);
  {
    MutexLock lock(mutex_);
    if (stopping_) return;
    request.set_reconnect(reconnect_ || generation_ != request.generation());
  }
  const TimePoint asked = Clock::now();
  const absl::StatusOr<proto::ReplicateReply> reply = ask(request);
  reply.ok() ? heard(request, *reply) : not_heard(reply.status(), asked);
  MutexLock lock(mutex_);
  if (reply.ok()) done_ = turn;
  changed_.notify_all();
  GRADRAIL_CHECK(done_ <= wanted_);
  const bool is_level = level_shards_ >= shards_.size();
  if (is_level && !said_level_ && options_.console) {
    lock.unlock();
    const absl::StatusOr<Shard::Stats> stats = shards_[0].stats();
    options_.console(fmt::format("the backup at {} has everything ({})", address_, stats.ok() ? stats->backup : ""));
    lock.lock();
  }
  said_level_ = is_level;
  const TimePoint next = Clock::now() + (reconnect_ ? Duration(kEveryWhileMissing) : Duration(kEvery));
  while (!stopping_ && wanted_ == turn && changed_.wait_until(lock, next)) {
  }
}

absl::StatusOr<proto::ReplicateReply> ReplicationLink::ask(proto::ReplicateRequest& request) {
  // The number orders the messages at the backup: gRPC can deliver a timed-out call late.
  request.set_number(++number_);
  TimePoint deadline = Clock::now() + kCallDeadline;
  if (channel_ == nullptr) {
    const absl::StatusOr<std::string> found = options_.address();
    deadline = Clock::now() + kCallDeadline;  // the search, for example in etcd, has its own limits
    // A task that is not registered any more may run where it was. If it has exited, its host refuses the connection.
    if (!found.ok() && (address_.empty() || !absl::IsNotFound(found.status()))) return found.status();
    if (found.ok()) address_ = *found;
    GRADRAIL_ASSIGN_OR_RETURN(channel_, options_.dialer->open(address_, kCallDeadline));
  }
  proto::ReplicateReply reply;
  const grpc::Status status = channel_->call(ControlCall::replicate, deadline - Clock::now(), request, reply);
  if (status.ok()) return reply;
  channel_ = nullptr;  // another process may run at this address now
  return from_grpc(status);
}

void ReplicationLink::heard(const proto::ReplicateRequest& request, const proto::ReplicateReply& reply) {
  failing_since_ = TimePoint::max();
  // The backup still waits for workers of the process before this one: whether this task may serve is undecided.
  if (reply.keeps()) return;
  if (reply.taken_over()) {
    {
      MutexLock lock(mutex_);
      serves_ = present_ = false;
    }
    // The call precedes has_asked_: check_serving() must not find a task that has an answer and still serves.
    options_.replaced();
    has_asked_ = true;
    is_isolated_ = false;
    return;
  }
  has_asked_ = true;
  is_isolated_ = false;
  // Another process at this address has none of the state.
  const bool other = std::exchange(process_, reply.process()) != reply.process();
  bool reconnect = false;
  {
    MutexLock lock(mutex_);
    present_ = true;
    if (!reconnect_) said_missing_ = false;
    reconnect = request.reconnect() && request.generation() > 0;
    reconnect_ = reconnect_ || other;
    if (reconnect) reconnect_ = false;
  }
  // The generation of the answered message, not the present one: the backup has set up its shards by that message.
  generation_ = request.generation();
  if (reconnect) attach(reply);
}

/// Reconnects the shards. The backup has just discarded its state, so the answers that the shards hold may leave.
void ReplicationLink::attach(const proto::ReplicateReply& reply) {
  {
    MutexLock lock(mutex_);
    level_shards_ = 0;
    if (!lost_.empty())
      log_warning("the connection to the backup was lost ({}); it receives the whole state again", lost_);
    lost_.clear();
  }
  const std::string refused = connect_shards(reply);
  if (refused.empty()) return;
  MutexLock lock(mutex_);
  reconnect_ = true;
  if (!std::exchange(said_missing_, true)) {
    log_warning("not replicated: the shards cannot reach the backup at {}: {}", address_, refused);
  }
}

/// Returns why a shard could not be connected; "" if all are.
std::string ReplicationLink::connect_shards(const proto::ReplicateReply& reply) {
  GRADRAIL_CHECK(generation_ > 0);  // the shards are set up
  std::string refused;
  for (size_t i = 0; i < shards_.size(); ++i) {
    // The sender of before may hold answers. The backup has discarded its state, so they can leave.
    shards_[i].detach_backup();
    if (static_cast<int>(i) >= reply.shards_size())
      return fmt::format("it has {} shards, {} are needed", reply.shards_size(), shards_.size());
    const absl::Status connected = shards_[i].replicate_to(
        usable(options_.transports, reply.shards(static_cast<int>(i)), reply.host_id(), address_),
        data_key(options_.secret, reply.token()));
    if (!connected.ok()) refused = message_of(connected);
  }
  return refused;
}

/// Whether the backup is still unreachable. A silence that began before the network returned is no evidence about it.
bool ReplicationLink::remains_isolated() {
  if (!is_isolated_ || !is_contacted_) {
    contacted_at_ = TimePoint::max();
    return is_isolated_;
  }
  contacted_at_ = std::min(contacted_at_, Clock::now());
  if (Clock::now() - contacted_at_ < options_.heartbeat_timeout) return true;
  is_isolated_ = false;
  return false;
}

void ReplicationLink::not_heard(const absl::Status& why, TimePoint asked) {
  const bool is_first = failing_since_ == TimePoint::max();
  // A call that lasted longer than its deadline spans a suspension of this process: it is no evidence of a loss.
  failing_since_ = std::min(failing_since_, std::max(asked, Clock::now() - kCallDeadline));
  const bool is_none_of_ours = absl::IsFailedPrecondition(why) || absl::IsUnauthenticated(why);
  if (is_none_of_ours) options_.refused(why);
  const bool is_sure = was_refused(why) || is_none_of_ours;
  if (is_sure) {
    has_asked_ = true;
    is_isolated_ = false;
  }
  if (remains_isolated()) return;
  if (Clock::now() - failing_since_ < (is_sure ? Duration(kRefusedLimit) : options_.heartbeat_timeout)) return;
  // A single timeout may be that of a busy host. The next round confirms it.
  if (is_first && !is_sure) return;
  has_asked_ = true;
  bool was_present = false, say_it = false;
  {
    MutexLock lock(mutex_);
    was_present = std::exchange(present_, false);
    if (was_present && deserted_ && !is_sure) begin_isolation();
    reconnect_ = true;
    level_shards_ = 0;
    lost_.clear();
    say_it = !std::exchange(is_none_of_ours ? said_refused_ : said_missing_, true);
  }
  // Answers that wait for the backup can leave now.
  if (was_present) {
    for (const auto& shard : shards_) shard->detach_backup();
  }
  if (!say_it) return;
  if (was_present) {
    log_warning("the backup at {} was lost ({}); the run continues without a backup until it returns", address_,
                std::string(message_of(why)));
  } else {
    log_warning("not replicated: the backup at {} is not ready yet ({})",
                address_.empty() ? "an unknown address" : address_, std::string(message_of(why)));
  }
}

}  // namespace gradrail::ps
