#include "tests/simulation/control_plane.h"

#include <google/protobuf/message.h>

#include <chrono>
#include <map>
#include <optional>
#include <utility>

#include "base/check.h"
#include "fmt/format.h"
#include "gradrail/cluster.h"
#include "ps/control/control_plane.h"
#include "ps/protocol/control.pb.h"
#include "ps/protocol/control_status.h"

namespace gradrail::simulation {
namespace {

constexpr uint32_t kFirstPort = 10'000;
constexpr Duration kLookForCancellationEvery = std::chrono::milliseconds(500);

Scheduler& scheduler() { return Scheduler::instance(); }
int64_t nanoseconds(Duration duration) {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(duration).count();
}
grpc::Status unavailable(const std::string& cause) { return {grpc::StatusCode::UNAVAILABLE, cause}; }

}  // namespace

/// A server that listens, and its calls under way.
struct Endpoint {
  ps::ControlPlane* plane = nullptr;
  ProcessId process = 0;
  int calls = 0;
  bool is_shut_down = false;
};

struct ControlPlanes::State {
  explicit State(Net& the_net) : net(the_net) {}
  Net& net;
  std::map<uint32_t, std::shared_ptr<Endpoint>> endpoints;  ///< per task
};

namespace {

using State = ControlPlanes::State;

/// One call, or one ping of a stream. Both processes hold it.
struct Call {
  ps::ControlCall kind{};
  std::string request, reply;
  grpc::Status status;
  bool is_done = false;
  bool is_cancelled = false;
};

template <typename Request, typename Reply, typename Handler>
void handle(Call& call, Handler handler) {
  Request request;
  Reply reply;
  GRADRAIL_CHECK(request.ParseFromString(call.request));
  call.status = ps::to_grpc(handler(request, reply));
  call.reply = reply.SerializeAsString();
}

void run_handler(ps::ControlPlane& plane, Call& call) {
  using namespace ps::proto;
  switch (call.kind) {
    case ps::ControlCall::describe:
      return handle<DescribeRequest, DescribeReply>(
          call, [&](const auto& request, auto& reply) { return plane.join.describe(request, reply); });
    case ps::ControlCall::join:
      return handle<JoinRequest, JoinReply>(
          call, [&](const auto& request, auto& reply) { return plane.join.join(request, reply); });
    case ps::ControlCall::barrier:
      return handle<BarrierRequest, BarrierReply>(call, [&](const auto& request, auto& reply) {
        std::optional<absl::Status> ended;
        const uint64_t wait = plane.barrier.enter(request, reply, [&](const absl::Status& status) {
          ended = status;
          scheduler().wake(&ended, true);
        });
        while (!ended.has_value()) {
          scheduler().wait({&ended}, scheduler().now() + nanoseconds(kLookForCancellationEvery));
          if (call.is_cancelled) plane.barrier.cancel(wait);
        }
        return *ended;
      });
    case ps::ControlCall::stats:
      return handle<StatsRequest, StatsReply>(
          call, [&](const auto& request, auto& reply) { return plane.stats.stats(request, reply); });
    case ps::ControlCall::checkpoint:
      return handle<CheckpointRequest, CheckpointReply>(
          call, [&](const auto& request, auto& reply) { return plane.checkpoint.save(request, reply); });
    case ps::ControlCall::checkpoint_outcome:
      return handle<CheckpointOutcomeRequest, CheckpointOutcomeReply>(
          call, [&](const auto& request, auto& reply) { return plane.checkpoint.outcome(request, reply); });
    case ps::ControlCall::leave:
      return handle<LeaveRequest, LeaveReply>(
          call, [&](const auto& request, auto& reply) { return plane.join.leave(request, reply); });
    case ps::ControlCall::trace:
      return handle<TraceRequest, TraceReply>(
          call, [&](const auto& request, auto& reply) { return plane.stats.trace(request, reply); });
    case ps::ControlCall::replicate:
      return handle<ReplicateRequest, ReplicateReply>(
          call, [&](const auto& request, auto& reply) { return plane.backup.mirror(request, reply); });
  }
}

/// Runs `work`, which the shutdown of the server awaits. False: the server is shut down.
bool in_server(Endpoint& endpoint, const std::function<void()>& work) {
  if (endpoint.is_shut_down) return false;
  ++endpoint.calls;
  work();
  --endpoint.calls;
  scheduler().wake(&endpoint, true);
  return true;
}

/// Sends the call and runs `handler` there. The reply wakes `call`.
void send_call(State& state, const std::shared_ptr<Connection>& connection, const std::shared_ptr<Endpoint>& endpoint,
               const std::shared_ptr<Call>& call, std::function<void(ps::ControlPlane&, Call&)> handler) {
  Net& net = state.net;
  net.send_to_server(*connection, [&net, connection, endpoint, call, handler = std::move(handler)] {
    scheduler().spawn(connection->server, [&net, connection, endpoint, call, handler] {
      if (connection->server_lost) return;
      if (!in_server(*endpoint, [&] { handler(*endpoint->plane, *call); })) return;
      net.send_to_client(*connection, [connection, call] {
        if (connection->client_lost) return;
        call->is_done = true;
        scheduler().wake(call.get(), true);
      });
    });
  });
}

/// Waits for the reply. Errors  UNAVAILABLE: the connection is lost. DEADLINE_EXCEEDED. CANCELLED.
grpc::Status wait_reply(const Connection& connection, Call& call, int64_t deadline) {
  while (!call.is_done) {
    if (call.is_cancelled) return grpc::Status::CANCELLED;
    if (connection.client_lost) return unavailable(connection.cause);
    if (scheduler().now() >= deadline) {
      call.is_cancelled = true;
      return {grpc::StatusCode::DEADLINE_EXCEEDED, "Deadline Exceeded"};
    }
    scheduler().wait({&call, &connection}, deadline);
  }
  return call.status;
}

class SimulatedHeartbeat final : public ps::HeartbeatStream {
  using Member = std::optional<ps::Membership::Member>;

 public:
  SimulatedHeartbeat(std::shared_ptr<State> state, std::shared_ptr<Connection> connection,
                     std::shared_ptr<Endpoint> endpoint, const ps::Membership::Member& member)
      : state_(std::move(state)),
        connection_(std::move(connection)),
        endpoint_(std::move(endpoint)),
        member_(std::make_shared<Member>(member)) {}
  ~SimulatedHeartbeat() override {
    if (call_ != nullptr) {
      call_->is_cancelled = true;
      scheduler().wake(call_.get(), true);
    }
    end();
    while (is_asking_) scheduler().wait({&is_asking_}, INT64_MAX);
  }

  void ask(const ps::proto::Ping& ping, ps::proto::HeartbeatReply& reply, Answered answered) override {
    open();
    call_ = std::make_shared<Call>();
    call_->request = ping.SerializeAsString();
    send_call(*state_, connection_, endpoint_, call_, [member = member_](ps::ControlPlane& plane, Call& call) {
      handle<ps::proto::Ping, ps::proto::HeartbeatReply>(call, [&](const auto& request, auto& answer) {
        *member = ps::to_member(request.member());
        const absl::Status live = plane.heartbeat.on_ping(request, answer);
        // The stream ends with this status, which is not a loss.
        if (!live.ok()) member->reset();
        return live;
      });
    });
    is_asking_ = true;
    scheduler().spawn(scheduler().process(), [this, &reply, answered = std::move(answered)] {
      status_ = wait_reply(*connection_, *call_, INT64_MAX);
      const bool ok = status_.ok() && reply.ParseFromString(call_->reply);
      answered(ok);
      is_asking_ = false;
      scheduler().wake(&is_asking_, true);
    });
  }
  grpc::Status finish() override {
    end();
    return connection_->client_lost ? unavailable(connection_->cause) : status_;
  }

 private:
  void open() {
    if (is_open_) return;
    is_open_ = true;
    connection_->on_server_lost = [endpoint = endpoint_, member = member_] {
      const Member ended = std::exchange(*member, std::nullopt);
      if (ended.has_value()) in_server(*endpoint, [&] { endpoint->plane->heartbeat.on_stream_end(*ended, 0); });
    };
  }
  /// The server sees the end of the stream, too.
  void end() {
    if (!is_open_ || std::exchange(is_ended_, true)) return;
    state_->net.send_to_server(*connection_, [connection = connection_] {
      if (!connection->server_lost && connection->on_server_lost) {
        scheduler().spawn(connection->server, connection->on_server_lost);
      }
    });
  }

  const std::shared_ptr<State> state_;
  const std::shared_ptr<Connection> connection_;
  const std::shared_ptr<Endpoint> endpoint_;
  const std::shared_ptr<Member> member_;
  std::shared_ptr<Call> call_;
  grpc::Status status_;
  bool is_open_ = false, is_ended_ = false, is_asking_ = false;
};

class SimulatedChannel final : public ps::ControlChannel {
 public:
  SimulatedChannel(std::shared_ptr<State> state, std::shared_ptr<Endpoint> endpoint)
      : state_(std::move(state)),
        endpoint_(std::move(endpoint)),
        connection_(state_->net.connect(scheduler().process(), endpoint_->process)) {}

  grpc::Status call(ps::ControlCall kind, Duration timeout, const google::protobuf::Message& request,
                    google::protobuf::Message& reply) override {
    if (connection_->client_lost) return unavailable(connection_->cause);
    auto call = std::make_shared<Call>();
    call->kind = kind;
    call->request = request.SerializeAsString();
    send_call(*state_, connection_, endpoint_, call, &run_handler);
    const grpc::Status status = wait_reply(*connection_, *call, scheduler().now() + nanoseconds(timeout));
    if (status.ok()) GRADRAIL_CHECK(reply.ParseFromString(call->reply));
    return status;
  }
  std::unique_ptr<ps::HeartbeatStream> heartbeat(const ps::proto::Member& member) override {
    return std::make_unique<SimulatedHeartbeat>(state_, connection_, endpoint_, ps::to_member(member));
  }

 private:
  const std::shared_ptr<State> state_;
  const std::shared_ptr<Endpoint> endpoint_;
  const std::shared_ptr<Connection> connection_;
};

class SimulatedDialer final : public ps::ControlDialer {
 public:
  explicit SimulatedDialer(std::shared_ptr<State> state) : state_(std::move(state)) {}

  absl::StatusOr<std::unique_ptr<ps::ControlChannel>> open(const std::string& address, Duration timeout) override {
    const absl::StatusOr<HostPort> where = parse_host_port(address);
    GRADRAIL_CHECK(where.ok());
    const uint32_t here = state_->net.task_of(scheduler().process()), there = where->port - kFirstPort;
    const int64_t deadline = scheduler().now() + nanoseconds(timeout);
    scheduler().sleep_until(scheduler().now() + 2 * state_->net.latency());
    if (state_->net.is_cut(here, there) || state_->net.is_cut(there, here) || state_->net.is_dark(there)) {
      scheduler().sleep_until(std::max(deadline, scheduler().now()));
      return absl::DeadlineExceededError("no answer");
    }
    const auto found = state_->endpoints.find(there);
    if (found == state_->endpoints.end()) return absl::UnavailableError("Connection refused");
    return std::make_unique<SimulatedChannel>(state_, found->second);
  }

 private:
  const std::shared_ptr<State> state_;
};

class SimulatedListener final : public ps::ControlListener {
 public:
  SimulatedListener(std::shared_ptr<State> state, uint32_t task, ps::ControlPlane& plane)
      : state_(std::move(state)), task_(task), endpoint_(std::make_shared<Endpoint>()) {
    endpoint_->plane = &plane;
    endpoint_->process = scheduler().process();
    state_->endpoints[task_] = endpoint_;
  }
  ~SimulatedListener() override { shutdown(Duration::zero()); }
  uint16_t port() const override { return static_cast<uint16_t>(kFirstPort + task_); }
  void shutdown(Duration) override {
    if (std::exchange(endpoint_->is_shut_down, true)) return;
    state_->endpoints.erase(task_);
    state_->net.on_kill(endpoint_->process, false);
    while (endpoint_->calls > 0) scheduler().wait({endpoint_.get()}, INT64_MAX);
  }

 private:
  const std::shared_ptr<State> state_;
  const uint32_t task_;
  const std::shared_ptr<Endpoint> endpoint_;
};

}  // namespace

std::string control_address(uint32_t task) { return fmt::format("127.0.0.1:{}", kFirstPort + task); }

ControlPlanes::ControlPlanes(Net& net) : state_(std::make_shared<State>(net)) {}
ControlPlanes::~ControlPlanes() = default;

std::shared_ptr<ps::ControlDialer> ControlPlanes::dialer() { return std::make_shared<SimulatedDialer>(state_); }

absl::StatusOr<std::unique_ptr<ps::ControlListener>> ControlPlanes::listen(ps::ControlPlane& plane, uint32_t task) {
  return std::make_unique<SimulatedListener>(state_, task, plane);
}

void ControlPlanes::on_kill(ProcessId process) {
  std::erase_if(state_->endpoints, [process](const auto& entry) { return entry.second->process == process; });
}

ps::ControlPlane* ControlPlanes::plane_of(uint32_t task) const {
  const auto found = state_->endpoints.find(task);
  return found == state_->endpoints.end() ? nullptr : found->second->plane;
}

}  // namespace gradrail::simulation
