#include "launch/rendezvous/rank_server.h"

#include <grpcpp/grpcpp.h>

#include <deque>
#include <optional>

#include "absl/memory/memory.h"
#include "base/net_address.h"
#include "base/status.h"
#include "fmt/format.h"
#include "fmt/ranges.h"
#include "launch/rendezvous/rendezvous.grpc.pb.h"
#include "ps/admission/gated_server.h"

namespace gradrail::launch {
namespace {

constexpr size_t kMaxReasonBytes = 1000;  // gRPC sends it in a header

using Reactor = grpc::ServerBidiReactor<proto::RankMessage, proto::RankMessage>;

grpc::Status refusal(const std::string& reason) {
  return grpc::Status(grpc::StatusCode::FAILED_PRECONDITION, reason.substr(0, kMaxReasonBytes));
}

}  // namespace

/// A stream belongs to gRPC until its hello has arrived, and then to the server.
class RankServer::Stream final : public ReactorStream<Reactor> {
 public:
  Stream(Service& service, grpc::CallbackServerContext& context) : service_(service), context_(context) {
    StartSendInitialMetadata();  // the rank waits for it, and then has the address of this host
    StartRead(&incoming_);
  }
  void OnReadDone(bool ok) override;
  void OnDone() override {
    const bool owned = owned_;  // the owner may delete the stream from note_done() on
    note_done(absl::OkStatus());
    if (!owned) delete this;
  }
  RankStreamPtr hand_over() {
    owned_ = true;
    StartRead(&incoming_);
    return RankStreamPtr(this);
  }

 protected:
  void close(const absl::Status& reason) override {
    Finish(reason.ok() ? grpc::Status::OK : refusal(std::string(message_of(reason))));
  }
  void release() override { Finish(grpc::Status::OK); }
  void cancel() override { context_.TryCancel(); }

 private:
  Service& service_;
  grpc::CallbackServerContext& context_;
  bool owned_ = false;
};

/// The gRPC server, and the ranks that gather() has not taken yet.
class RankServer::Service final : public proto::Rendezvous::CallbackService {
 public:
  struct Arrival {
    proto::RankHello hello;
    RankStreamPtr stream;
  };

  ~Service() override {
    close();
    server_ = nullptr;  // ends streams without a hello
  }

  /// Errors  Those of ps::GatedServer::start.
  absl::Status listen(const std::string& address, const std::string& secret, int max_message_bytes) {
    grpc::ServerBuilder builder;
    builder.SetMaxReceiveMessageSize(max_message_bytes);
    builder.AddChannelArgument(GRPC_ARG_MAX_CONCURRENT_STREAMS, 1);
    builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIME_MS, kRankPingMs);
    builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, kRankPingTimeoutMs);
    builder.AddChannelArgument(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);  // no limit
    builder.AddChannelArgument(GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS, kRankPingMs / 2);
    builder.RegisterService(this);
    GRADRAIL_ASSIGN_OR_RETURN(
        server_, ps::GatedServer::start(builder, address, grpc::InsecureServerCredentials(), {.secret = secret}));
    return absl::OkStatus();
  }

  Reactor* Join(grpc::CallbackServerContext* context) override { return new Stream(*this, *context); }

  /// False: no rank can join any more.
  bool add(Stream& stream, proto::RankHello hello) {
    const MutexLock lock(mutex_);
    if (closed_) return false;
    arrivals_.push_back({std::move(hello), stream.hand_over()});
    changed_.notify_all();
    return true;
  }

  std::optional<Arrival> next(TimePoint deadline) {
    MutexLock lock(mutex_);
    while (arrivals_.empty())
      if (!changed_.wait_until(lock, deadline) && arrivals_.empty()) return std::nullopt;
    Arrival first = std::move(arrivals_.front());
    arrivals_.pop_front();
    return first;
  }

  /// Refuses all further ranks.
  void close() {
    std::deque<Arrival> late;
    {
      const MutexLock lock(mutex_);
      closed_ = true;
      late.swap(arrivals_);
    }
    for (const Arrival& arrival : late) arrival.stream->end(absl::FailedPreconditionError(kComplete));
  }

  static constexpr char kComplete[] = "all ranks of that job have joined";

 private:
  Mutex mutex_;
  ConditionVariable changed_;
  std::deque<Arrival> arrivals_ ABSL_GUARDED_BY(mutex_);
  bool closed_ ABSL_GUARDED_BY(mutex_) = false;
  std::unique_ptr<ps::GatedServer> server_;
};

void RankServer::Stream::OnReadDone(bool ok) {
  if (owned_) return note_read(ok);
  if (!ok || !incoming_.has_hello()) return Finish(refusal("the first message must be a hello"));
  proto::RankHello hello = std::move(*incoming_.mutable_hello());
  // The address at which the rank connects from is one that this host, and probably others, can reach.
  if (hello.address().empty()) hello.set_address(host_of_peer(context_.peer()));
  if (!service_.add(*this, std::move(hello))) Finish(refusal(Service::kComplete));
}

RankServer::RankServer(const RankServerOptions& options)
    : options_(options),
      assignments_(options.hello.size(), options.hello.ps_count()),
      service_(std::make_unique<Service>()) {}
RankServer::~RankServer() = default;

absl::Status RankServer::listen() {
  GRADRAIL_ASSIGN_OR_RETURN(HostPort meet, parse_host_port(options_.address));
  // The host's own name may be an address that no other host reaches.
  if (!is_loopback_host(meet.host) && meet.host != "localhost") meet.host = "::";
  const absl::Status listening = service_->listen(to_string(meet), options_.secret, options_.max_message_bytes);
  if (listening.ok()) return listening;
  return absl::FailedPreconditionError(
      fmt::format("the first task of {} {}; choose another port for all tasks (--rendezvous tcp://HOST:PORT, or the "
                  "cluster)",
                  options_.hello.job(), message_of(listening)));
}

std::string RankServer::mismatch(const proto::RankHello& hello) const {
  const proto::RankHello& ours = options_.hello;
  if (hello.version() != ours.version())
    return fmt::format("it is {}, the first one {}", hello.version(), ours.version());
  if (hello.size() != ours.size())
    return fmt::format("it has {} tasks, the first one has {}", hello.size(), ours.size());
  if (hello.ps_count() != ours.ps_count())
    return fmt::format("--ps {} there, --ps {} here", hello.ps_count(), ours.ps_count());
  if (hello.backup_ps() != ours.backup_ps())
    return fmt::format("--backup-ps {:d} there, --backup-ps {:d} here", hello.backup_ps(), ours.backup_ps());
  return "";
}

/// Errors  FAILED_PRECONDITION: a task of the job does not fit, so that the wait for it would be in vain.
absl::Status RankServer::admit(RankStreamPtr stream, const proto::RankHello& hello) {
  const auto refuse = [&](const std::string& reason) {
    stream->end(absl::FailedPreconditionError(reason));
    return reason;
  };
  // Two jobs with one port on one host: the other job has to change, and this one waits for its own tasks.
  if (hello.job() != options_.hello.job()) {
    refuse(fmt::format(
        "this rendezvous belongs to {}, the task to {}: give one of the two jobs another --rendezvous tcp://HOST:PORT",
        options_.hello.job(), hello.job()));
    return absl::OkStatus();
  }
  if (const std::string reason = mismatch(hello); !reason.empty())
    return absl::FailedPreconditionError(fmt::format("{}: {}", name_of(hello), refuse(reason)));
  // The address at which a rank has reached this host: other ranks can use it as well.
  if (options_.has_own_task && options_.hello.address().empty())
    assignments_.set_first_ps_address(hello.first_address());
  const absl::StatusOr<TaskId> task = assignments_.take(hello);
  if (task.ok()) {
    stream->set_peer_name(fmt::format("{}/{}", task->job, task->index));
    joined_.push_back({*task, std::move(stream)});
  } else {
    options_.say(fmt::format("{} was refused: {}", name_of(hello), refuse(std::string(message_of(task.status())))));
  }
  return absl::OkStatus();
}

absl::Status RankServer::wait_for_all() {
  if (options_.has_own_task) GRADRAIL_RETURN_IF_ERROR(assignments_.take(options_.hello).status());
  const TimePoint deadline = Clock::now() + options_.timeout;
  const auto missing = [&] {
    return fmt::format("{} of {} at {}", fmt::join(assignments_.missing(), ", "), options_.hello.job(),
                       options_.address);
  };
  while (!assignments_.missing().empty()) {
    // The wait ends at intervals, so that the log shows a user which tasks are missing.
    std::optional<Service::Arrival> arrival = service_->next(std::min(deadline, Clock::now() + kRankProgress));
    if (arrival) {
      GRADRAIL_RETURN_IF_ERROR(admit(std::move(arrival->stream), arrival->hello));
    } else if (Clock::now() < deadline) {
      options_.say(fmt::format("waiting for {}", missing()));
    } else {
      return absl::DeadlineExceededError(fmt::format("{} did not join within {} s: has the launcher started them?",
                                                     missing(), options_.timeout / std::chrono::seconds(1)));
    }
  }
  service_->close();
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<RankServer>> RankServer::gather(const RankServerOptions& options) {
  auto server = absl::WrapUnique(new RankServer(options));
  GRADRAIL_RETURN_IF_ERROR(server->listen());
  GRADRAIL_RETURN_IF_ERROR(server->wait_for_all());
  return server;
}

}  // namespace gradrail::launch
