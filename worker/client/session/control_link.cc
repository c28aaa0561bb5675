#include "worker/client/session/control_link.h"

#include <grpcpp/grpcpp.h>

#include <algorithm>
#include <atomic>

#include "base/check.h"
#include "base/status.h"
#include "fmt/format.h"
#include "ps/admission/grpc_channel.h"
#include "ps/protocol/altered_data.h"
#include "ps/protocol/control.pb.h"
#include "ps/protocol/control_channel.h"
#include "ps/protocol/control_status.h"
#include "ps/protocol/training.h"
#include "worker/client/run_failure.h"

namespace gradrail::worker {

using Call = ps::ControlCall;

namespace {

constexpr auto kLeaveDeadline = std::chrono::seconds(12);    // a ps informs its backup first, for 10 s
constexpr auto kCallDeadline = std::chrono::seconds(30);     // a copy of a large model takes a while
constexpr auto kRetryEvery = std::chrono::milliseconds(50);  // ps tasks start within tens of milliseconds
constexpr auto kTryDeadline = std::chrono::seconds(2);
constexpr int kConnectMs = 1500;                        // less than kTryDeadline, else the cause does not get here
constexpr auto kFirstNotice = std::chrono::seconds(1);  // a running ps has answered within this time
constexpr auto kWaitReportEvery = std::chrono::seconds(10);
/// Three times the default after which a ps expires a lost worker. A member that answers for longer is another process
/// with our task index.
constexpr auto kPredecessorEnds = std::chrono::seconds(30);
// A stopped ps is detected within the sum of both. After an outage of up to 3 s, TCP sends again 3.06 s after the
// begin. The limit must be longer, and shorter than the silence after which a ps counts a worker as lost (4 s).
constexpr Duration kShortestPingTime = std::chrono::milliseconds(2500);
constexpr int kAnswerMs = 3500;

std::string name_at(uint32_t ps_index, const std::string& address) {
  return fmt::format("parameter server {} ({})", ps_index, address.empty() ? "its address is not known yet" : address);
}

/// Describes why an attempt failed. An attempt that reached its deadline reports internals of gRPC only: the cause of
/// the previous attempt may help.
std::string explain_try(const grpc::Status& status, std::string& found_before) {
  const bool cut_short = status.error_code() == grpc::StatusCode::DEADLINE_EXCEEDED ||
                         status.error_message().find("handshaker shutdown") != std::string::npos;
  if (!cut_short) {
    // A ps that expects TLS or a certificate closes the connection without a message.
    const bool hung_up = status.error_message().find("Socket closed") != std::string::npos;
    return found_before =
               ps::connection_cause(status.error_message()) +
               (hung_up ? " (does it require TLS or a certificate? see --cert-file and --trusted-ca-file)" : "");
  }
  return found_before.empty() ? "no answer" : fmt::format("no answer (before: {})", found_before);
}

/// TLS errors are final: another attempt would find the same certificates.
bool is_of_tls(const std::string& message) {
  return message.find("Ssl handshake failed") != std::string::npos ||
         message.find("is not in peer certificate") != std::string::npos;
}

}  // namespace

struct ControlLink::Rpc {
  grpc::Status call(Call call, Duration timeout, const google::protobuf::Message& request,
                    google::protobuf::Message& reply) {
    // No connection is open after a rejoin that failed.
    if (channel == nullptr) return {grpc::StatusCode::UNAVAILABLE, "no connection is open"};
    return channel->call(call, timeout, request, reply);
  }

  std::unique_ptr<ps::ControlChannel> channel;  ///< null until a connection is open
};

struct ControlLink::Beat {
  enum class State : uint8_t {
    idle,      ///< the next ping waits for its time
    asked,     ///< the answer is awaited
    answered,  ///< the owner must take the answer or the end of the stream
  };
  Beat(Heartbeats& all, std::function<void(absl::Status)> on_failed,
       std::function<void(const ps::proto::HeartbeatReply&)> on_heard, std::unique_ptr<ps::HeartbeatStream> a_stream)
      : heartbeats(all), failed(std::move(on_failed)), heard(std::move(on_heard)), stream(std::move(a_stream)) {}

  Heartbeats& heartbeats;
  uint64_t number = 0;  ///< number of the heartbeat in Heartbeats
  const std::function<void(absl::Status)> failed;
  const std::function<void(const ps::proto::HeartbeatReply&)> heard;
  ps::proto::Ping ping;
  ps::proto::HeartbeatReply reply;
  TimePoint asked;
  TimePoint next;  ///< time of the next ping
  // Written before `state` becomes answered.
  TimePoint answered;
  bool was_answered = false;
  std::atomic<State> state = State::idle;
  std::unique_ptr<ps::HeartbeatStream> stream;  ///< last: its callback uses the others
};

absl::StatusOr<std::shared_ptr<ps::ControlDialer>> control_link_dialer(const Security& security, size_t worker_count) {
  // The time is longer than the interval of heartbeats: a ping of gRPC costs the ps the same as a heartbeat.
  const Duration silence = std::max(kShortestPingTime, ps::heartbeat_interval(worker_count) * 5 / 4);
  return ps::grpc_dialer(security, {.ping_ms = static_cast<int>(silence / std::chrono::milliseconds(1)),
                                    .answer_ms = kAnswerMs,
                                    .connect_ms = kConnectMs});
}

ControlLink::ControlLink(uint32_t ps_index, std::string address, std::shared_ptr<ps::ControlDialer> dialer, LogSink log,
                         StopRequest stop, AddressResolver resolver)
    : ps_index_(ps_index),
      dialer_(std::move(dialer)),
      log_(std::move(log)),
      stop_(std::move(stop)),
      resolver_(std::move(resolver)),
      address_(std::move(address)),
      name_(name_at(ps_index, address_)),
      rpc_(std::make_unique<Rpc>()) {}

// A turn of the heartbeat uses all other fields.
ControlLink::~ControlLink() { stop_heartbeat(); }

absl::Status ControlLink::explain(const grpc::Status& status) const {
  const absl::Status cause = ps::from_grpc(status);
  // This side reads the status of no call that it has cancelled: CANCELLED is a ps that shuts down during the call.
  if (status.error_code() == grpc::StatusCode::UNAVAILABLE || status.error_code() == grpc::StatusCode::CANCELLED ||
      status.error_code() == grpc::StatusCode::DEADLINE_EXCEEDED) {
    const bool shut_down = status.error_code() == grpc::StatusCode::CANCELLED;
    return absl::UnavailableError(
        fmt::format("{} was lost: {}", name_, shut_down ? "it ended during a call" : message_of(cause)));
  }
  return absl::Status(cause.code(), fmt::format("{}: {}", name_, message_of(cause)));
}

absl::Status ControlLink::explain_membership(const grpc::Status& status) const {
  absl::Status cause = explain(status);
  if (absl::IsOutOfRange(cause))
    return returnable(absl::AbortedError(fmt::format("{}: it has to join again", message_of(cause))));
  if (!absl::IsNotFound(cause)) return cause;
  // The ps has removed this worker. The configuration is right and the run continues, so that a restart helps.
  return absl::AbortedError(fmt::format("{}; start this worker again", message_of(cause)));
}

absl::Status ControlLink::open() {
  rpc_->channel = nullptr;
  GRADRAIL_ASSIGN_OR_RETURN(rpc_->channel, dialer_->open(address_, kTryDeadline));
  return absl::OkStatus();
}

grpc::Status ControlLink::look_up() {
  if (!resolver_) return grpc::Status::OK;
  const absl::StatusOr<std::string> found = resolver_();
  if (!found.ok()) {
    // An address that is not known yet may be known soon; an address that cannot be used stays unusable.
    const bool final = !absl::IsNotFound(found.status()) && !absl::IsUnavailable(found.status());
    return {final ? grpc::StatusCode::FAILED_PRECONDITION : grpc::StatusCode::UNAVAILABLE,
            std::string(message_of(found.status()))};
  }
  if (*found == address_) return grpc::Status::OK;
  address_ = *found;
  name_ = name_at(ps_index_, address_);
  return grpc::Status::OK;
}

absl::StatusOr<ps::proto::DescribeReply> ControlLink::describe(const ps::proto::DescribeRequest& request,
                                                               TimePoint deadline) {
  TimePoint notice_at = Clock::now() + kFirstNotice;
  std::string found_before;
  while (true) {
    ps::proto::DescribeReply reply;
    grpc::Status status = look_up();
    // Each attempt needs a new connection: the ps may be another process by now.
    if (status.ok()) status = ps::to_grpc(open());
    if (status.ok()) status = rpc_->call(Call::describe, kTryDeadline, request, reply);
    if (status.ok()) {
      checkpoint_folder_ = reply.checkpoint_folder();
      return reply;
    }
    const bool unreachable = status.error_code() == grpc::StatusCode::UNAVAILABLE ||
                             status.error_code() == grpc::StatusCode::DEADLINE_EXCEEDED;
    if (!unreachable) return explain(status);
    const std::string why = explain_try(status, found_before);
    if (is_of_tls(status.error_message())) {
      return absl::FailedPreconditionError(
          fmt::format("{}: TLS failed: {} (does --trusted-ca-file match its certificate, does the certificate name its "
                      "host, does the server use TLS?)",
                      name_, why));
    }
    if (stop_ && stop_()) return absl::CancelledError(fmt::format("stopped while waiting for {}", name_));
    if (Clock::now() >= deadline) {
      return absl::DeadlineExceededError(fmt::format(
          "{} did not come up in time (is it started, and is the address right? it ends when all workers of its "
          "run have left): {}",
          name_, why));
    }
    if (Clock::now() >= notice_at) {
      notice_at = Clock::now() + kWaitReportEvery;
      log_(fmt::format("waiting for {}: {}", name_, why));
    }
    std::this_thread::sleep_for(kRetryEvery);
  }
}

absl::StatusOr<ps::proto::JoinReply> ControlLink::join(const ps::proto::JoinRequest& request, TimePoint deadline) {
  // Waits for two states that pass: a former incarnation of this worker, and a ps that still belongs to another group.
  deadline = std::min(deadline, Clock::now() + kPredecessorEnds);
  std::string in_our_way;
  while (true) {
    ps::proto::JoinReply reply;
    const grpc::Status status = rpc_->call(Call::join, kCallDeadline, request, reply);
    if (status.ok()) return reply;
    const bool other_group = status.error_code() == grpc::StatusCode::OUT_OF_RANGE;
    const bool in_the_way = status.error_code() == grpc::StatusCode::ALREADY_EXISTS || other_group;
    if (!in_the_way || Clock::now() >= deadline || (stop_ && stop_())) {
      const absl::Status why = explain(status);
      if (other_group) return absl::AlreadyExistsError(why.message());
      // The description of the ps has arrived in small packets. The join names all tensors.
      if (absl::IsUnavailable(why)) {
        const absl::Status size = dialer_->check_packet_size(address_, kTryDeadline);
        if (absl::IsFailedPrecondition(size))
          return absl::FailedPreconditionError(fmt::format("{}: {}", name_, message_of(size)));
      }
      if (in_the_way || in_our_way.empty()) return why;
      return absl::Status(why.code(), fmt::format("{}; its answer before: {}", message_of(why), in_our_way));
    }
    if (in_our_way.empty()) log_(fmt::format("waiting to join {}: {}", name_, status.error_message()));
    in_our_way = status.error_message();
    std::this_thread::sleep_for(std::chrono::milliseconds(200));
  }
}

absl::StatusOr<ps::proto::BarrierReply> ControlLink::barrier(const ps::proto::BarrierRequest& request) {
  ps::proto::BarrierReply reply;
  const grpc::Status status = rpc_->call(Call::barrier, kCallDeadline, request, reply);
  if (!status.ok()) return explain_membership(status);
  return reply;
}

absl::StatusOr<ps::proto::StatsReply> ControlLink::stats_for_a_watcher(bool dump) {
  if (rpc_->channel == nullptr) {
    if (const absl::Status opened = open(); !opened.ok()) return explain(ps::to_grpc(opened));
  }
  absl::StatusOr<ps::proto::StatsReply> reply = stats(dump);
  if (!reply.ok()) rpc_->channel = nullptr;  // the next call opens a connection
  return reply;
}

absl::StatusOr<ps::proto::StatsReply> ControlLink::stats(bool dump) {
  ps::proto::StatsRequest request;
  request.set_dump(dump);
  ps::proto::StatsReply reply;
  const grpc::Status status = rpc_->call(Call::stats, std::chrono::seconds(2), request, reply);
  if (!status.ok()) return explain(status);
  return reply;
}

absl::StatusOr<ps::proto::TraceReply> ControlLink::trace(const ps::proto::TraceRequest& request) {
  ps::proto::TraceReply reply;
  const grpc::Status status = rpc_->call(Call::trace, kCallDeadline, request, reply);
  if (!status.ok()) return explain(status);
  return reply;
}

ClockOffset ControlLink::clock_offset() const {
  MutexLock lock(mutex_);
  return clocks_.best();
}

absl::StatusOr<ps::proto::CheckpointReply> ControlLink::checkpoint(const ps::proto::CheckpointRequest& request) {
  ps::proto::CheckpointReply reply;
  const grpc::Status status = rpc_->call(Call::checkpoint, kCallDeadline, request, reply);
  if (!status.ok()) return explain(status);
  return reply;
}

absl::StatusOr<ps::proto::CheckpointOutcomeReply> ControlLink::checkpoint_outcome(
    const ps::proto::CheckpointOutcomeRequest& request) {
  ps::proto::CheckpointOutcomeReply reply;
  const grpc::Status status = rpc_->call(Call::checkpoint_outcome, kCallDeadline, request, reply);
  if (!status.ok()) return explain(status);
  return reply;
}

/// Sends the RPC for three ends of work: of the membership, of the steps, and of a temporary absence.
absl::StatusOr<ps::proto::LeaveReply> ControlLink::send_leave(const ps::proto::LeaveRequest& request,
                                                              Duration timeout) {
  ps::proto::LeaveReply reply;
  const grpc::Status status = rpc_->call(Call::leave, timeout, request, reply);
  if (!status.ok()) return explain(status);
  return reply;
}

absl::Status ControlLink::leave(const ps::proto::Member& member, const std::string& failed) {
  ps::proto::LeaveRequest request;
  *request.mutable_member() = member;
  request.set_failed(failed);
  return send_leave(request, kLeaveDeadline).status();
}

absl::StatusOr<bool> ControlLink::leave_unless_last(const ps::proto::Member& member) {
  ps::proto::LeaveRequest request;
  *request.mutable_member() = member;
  request.set_unless_last(true);
  GRADRAIL_ASSIGN_OR_RETURN(const ps::proto::LeaveReply reply, send_leave(request, kLeaveDeadline));
  return !reply.is_last();
}

absl::Status ControlLink::finish_steps(const ps::proto::Member& member) {
  ps::proto::LeaveRequest request;
  *request.mutable_member() = member;
  request.set_stays(true);
  return send_leave(request, kCallDeadline).status();
}

void ControlLink::leave_to_return(const ps::proto::Member& member) {
  ps::proto::LeaveRequest request;
  *request.mutable_member() = member;
  request.set_returns(true);
  send_leave(request, std::chrono::seconds(1)).status().IgnoreError();
}

absl::Status ControlLink::why_removed(const ps::proto::Member& member) {
  ps::proto::BarrierRequest request;  // no timeout: only members get an answer
  *request.mutable_member() = member;
  request.set_name("still a member");
  request.set_live_only(true);
  ps::proto::BarrierReply reply;
  const absl::Status status = explain_membership(rpc_->call(Call::barrier, std::chrono::seconds(1), request, reply));
  return absl::IsAborted(status) ? status : absl::OkStatus();
}

absl::Status ControlLink::take_answer(Beat& beat) {
  if (!beat.was_answered) {
    const absl::Status ended = explain_membership(beat.stream->finish());
    return ended.ok() ? absl::UnavailableError(fmt::format("{} was lost: it ended the heartbeat", name_)) : ended;
  }
  if (!beat.reply.aborted().empty()) return ps::aborted_run(beat.reply.aborted());
  beat.heard(beat.reply);
  const MutexLock lock(mutex_);
  // Every heartbeat is also a comparison of the two clocks.
  clocks_.add(beat.asked, beat.reply.clock_ns(), beat.answered);
  return absl::OkStatus();
}

TimePoint ControlLink::beat() {
  Beat& beat = *beat_;
  if (beat.state == Beat::State::asked) return TimePoint::max();  // woken too early
  if (beat.state.exchange(Beat::State::idle) == Beat::State::answered) {
    if (const absl::Status failed = take_answer(beat); !failed.ok()) {
      beat.failed(failed);
      beat.state = Beat::State::asked;  // no turn does anything any more
      return TimePoint::max();
    }
    beat.next = beat.answered +
                std::max<Duration>(ps::kShortestHeartbeat, std::chrono::microseconds(beat.reply.next_ping_us()));
  }
  if (Clock::now() < beat.next) return beat.next;
  if (fill_) fill_(beat.ping);
  beat.asked = Clock::now();
  beat.state = Beat::State::asked;
  beat.stream->ask(beat.ping, beat.reply, [&beat](bool ok) {
    beat.answered = Clock::now();
    beat.was_answered = ok;
    beat.state = Beat::State::answered;
    beat.heartbeats.wake(beat.number);
  });
  return TimePoint::max();
}

void ControlLink::start_heartbeat(Heartbeats& heartbeats, const ps::proto::Member& member,
                                  std::function<void(absl::Status)> failed,
                                  std::function<void(const ps::proto::HeartbeatReply&)> heard) {
  GRADRAIL_CHECK(beat_ == nullptr);
  // An unopened link cannot be joined, so that no member without a connection starts its heartbeat.
  GRADRAIL_CHECK(rpc_->channel != nullptr);
  beat_ = std::make_unique<Beat>(heartbeats, std::move(failed), std::move(heard), rpc_->channel->heartbeat(member));
  *beat_->ping.mutable_member() = member;
  beat_->number = heartbeats.add([this] { return beat(); });
  heartbeats.wake(beat_->number);
}

void ControlLink::stop_heartbeat() {
  if (beat_ == nullptr) return;
  beat_->heartbeats.remove(beat_->number);
  beat_ = nullptr;  // ends the stream
}

absl::Status check_one_checkpoint_folder(absl::Span<const std::unique_ptr<ControlLink>> controls) {
  for (const auto& control : controls) {
    const ControlLink& first = *controls[0];
    if (control->checkpoint_folder() == first.checkpoint_folder()) continue;
    if (control->checkpoint_folder().empty() || first.checkpoint_folder().empty()) {
      const ControlLink& without = first.checkpoint_folder().empty() ? first : *control;
      const ControlLink& with = first.checkpoint_folder().empty() ? *control : first;
      return absl::FailedPreconditionError(
          fmt::format("{} has a checkpoint folder, {} has none: give all ps tasks one shared --checkpoint_dir, or none",
                      with.name(), without.name()));
    }
    return absl::FailedPreconditionError(
        fmt::format("{} and {} have different checkpoint folders, so that no checkpoint could be restored: give all ps "
                    "tasks one --checkpoint_dir on a shared file system",
                    first.name(), control->name()));
  }
  return absl::OkStatus();
}

}  // namespace gradrail::worker
