// Losses and requests while a worker joins, or while a backup takes over. The worker continues as the same member.
#include <grpcpp/grpcpp.h>

#include "base/status.h"
#include "ps/admission/grpc_channel.h"
#include "ps/protocol/control.pb.h"
#include "ps/protocol/control_channel.h"
#include "tests/base/captured_log.h"
#include "tests/transport/loopback/context.h"
#include "tests/transport/loopback/link.h"
#include "tests/transport/loopback/network.h"
#include "tests/worker/client/cluster.h"
#include "worker/client/client_impl.h"

namespace gradrail::worker {
namespace {

using Hook = std::function<void()>;

/// Calls a function before or after the first join at one address.
class HookedDialer final : public ps::ControlDialer {
 public:
  HookedDialer(std::string address, Hook before, Hook after)
      : inner_(*ps::grpc_dialer({}, {})),
        address_(std::move(address)),
        before_(std::move(before)),
        after_(std::move(after)) {}
  absl::StatusOr<std::unique_ptr<ps::ControlChannel>> open(const std::string& address, Duration timeout) override {
    GRADRAIL_ASSIGN_OR_RETURN(std::unique_ptr<ps::ControlChannel> channel, inner_->open(address, timeout));
    if (address != address_) return channel;
    return std::make_unique<Channel>(*this, std::move(channel));
  }

 private:
  class Channel final : public ps::ControlChannel {
   public:
    Channel(HookedDialer& dialer, std::unique_ptr<ps::ControlChannel> inner)
        : dialer_(dialer), inner_(std::move(inner)) {}
    grpc::Status call(ps::ControlCall call, Duration timeout, const google::protobuf::Message& request,
                      google::protobuf::Message& reply) override {
      const bool is_join = call == ps::ControlCall::join;
      if (is_join) run_once(dialer_.before_);
      grpc::Status status = inner_->call(call, timeout, request, reply);
      if (is_join) run_once(dialer_.after_);
      return status;
    }
    std::unique_ptr<ps::HeartbeatStream> heartbeat(const ps::proto::Member& member) override {
      return inner_->heartbeat(member);
    }

   private:
    static void run_once(Hook& hook) {
      if (hook) std::exchange(hook, nullptr)();
    }
    HookedDialer& dialer_;
    const std::unique_ptr<ps::ControlChannel> inner_;
  };

  const std::shared_ptr<ps::ControlDialer> inner_;
  const std::string address_;
  Hook before_, after_;
};

void make_step(Client& client, uint32_t worker, uint64_t step = 1) {
  fill_gradients(client, worker, step);
  client.exchange();
  const absl::Status waited = client.wait();
  EXPECT_TRUE(waited.ok()) << waited;
  EXPECT_EQ(client.position(), step);
}

void check_first_step(Client& client) {
  const std::vector<float> parameters = flatten(client);
  for (size_t i = 0; i < parameters.size(); ++i)
    ASSERT_EQ(parameters[i], initial_of(i) - (gradient_of(0, 1, i) + gradient_of(1, 1, i)) / 2)
        << "element " << i << ": step 1 has the gradients of both workers";
}

/// Worker 0 waits in its first step of sync for worker 1, which joins while ps task 1 is lost.
class JoinLoss : public ::testing::Test {
 protected:
  ClientOptions options(uint32_t task) const {
    ClientOptions options = cluster_.options(task);
    options.mode.kind = ModeKind::sync;
    options.recovery.rejoin_timeout = 60s;
    return options;
  }
  /// Takes the first step with both workers.
  void run(Hook before_join, Hook after_join, uint64_t takeovers_of_late_worker) {
    const std::unique_ptr<Client> first = join(options(0), odd_schema());
    ASSERT_NE(first, nullptr);
    fill_initial(*first);
    ASSERT_TRUE(first->start().ok());
    ASSERT_TRUE(eventually([&] { return cluster_.server(1).stats()->backup() == "level"; }));
    std::thread step([&] { make_step(*first, 0); });
    const ClientOptions second = options(1);
    absl::StatusOr<std::unique_ptr<Client>> late = ClientImpl::join_over(
        std::make_shared<HookedDialer>(second.cluster.ps[1], std::move(before_join), std::move(after_join)), second,
        odd_schema());
    EXPECT_TRUE(late.ok()) << late.status();
    if (late.ok()) {
      const absl::Status started = (*late)->start();
      EXPECT_TRUE(started.ok()) << started;
      make_step(**late, 1);
      EXPECT_EQ((*late)->statistics().now().takeovers, takeovers_of_late_worker);
    }
    step.join();
    EXPECT_EQ(first->statistics().now().takeovers, 1u);
    check_first_step(*first);
  }
  const Watchdog watchdog_;
  Cluster cluster_{{.ps_count = 2, .worker_count = 2, .backups = true}};
};

TEST_F(JoinLoss, AfterTheDescriptionTheBackupIsJoined) {
  run([this] { cluster_.stop(1); }, nullptr, 0);
}

TEST_F(JoinLoss, BeforeTheDataConnectionsTheBackupTakesOver) {
  run(
      nullptr, [this] { cluster_.stop(1); }, 1);  // it stays a member: it does not join again
}

/// Found by `top --dump` right after a start: the first heartbeat came later, and its count was taken for an old one.
TEST(Join, ADumpBeforeTheFirstHeartbeatIsMade) {
  const Watchdog watchdog;
  Cluster cluster({.worker_count = 1});
  ClientOptions options = cluster.options(0);
  int dumps = 0;
  options.hooks.marks = 64;
  options.hooks.dump = [&](const std::vector<Mark>&) { ++dumps; };
  const Hook ask = [&] {
    ps::proto::StatsRequest request;
    request.set_dump(true);
    ps::proto::StatsReply reply;
    const std::unique_ptr<ps::ControlChannel> channel = *(*ps::grpc_dialer({}, {}))->open(options.cluster.ps[0], 20s);
    EXPECT_TRUE(channel->call(ps::ControlCall::stats, 20s, request, reply).ok());
  };
  // A dump from before the join is not repeated.
  const auto client =
      ClientImpl::join_over(std::make_shared<HookedDialer>(options.cluster.ps[0], ask, ask), options, odd_schema());
  ASSERT_TRUE(client.ok()) << client.status();
  fill_initial(**client);
  ASSERT_TRUE((*client)->start().ok());
  uint64_t step = 0;
  EXPECT_TRUE(eventually([&] {
    make_step(**client, 0, ++step);
    return dumps > 0;
  }));
  EXPECT_EQ(dumps, 1);
}

/// Refuses the next `refuse` data connections, and calls `on_refusal` once.
class RefusingNetwork : public transport::loopback::Network {
 public:
  RefusingNetwork() { transport::loopback::use_network(this); }
  ~RefusingNetwork() override { transport::loopback::use_network(nullptr); }

  uint64_t place() override { return 0; }
  absl::Status connect(const std::shared_ptr<transport::loopback::Link>&, TimePoint) override {
    if (refuse == 0) return absl::OkStatus();
    --refuse;
    if (on_refusal) std::exchange(on_refusal, nullptr)();
    return absl::UnavailableError("the network is down");
  }
  TimePoint arrival(const transport::loopback::End&, const transport::loopback::End&) override { return Clock::now(); }
  bool passes(const transport::loopback::End&, const transport::loopback::End&) override { return true; }

  std::atomic<int> refuse = 0;
  Hook on_refusal;
};

/// Found by the whole-system simulation: the worker left to join again, and the others applied a step without it.
TEST(Takeover, APathToTheBackupThatFailsIsTriedAgainAsTheSameMember) {
  const Watchdog watchdog;
  transport::loopback::add_to_transports();
  RefusingNetwork network;
  Cluster cluster({.ps_count = 1, .worker_count = 2, .transports = {"loopback"}, .backups = true});
  std::vector<std::unique_ptr<Client>> clients;
  for (uint32_t task = 0; task < 2; ++task) {
    ClientOptions options = cluster.options(task);
    options.mode.kind = ModeKind::sync;
    options.transport.order = {"loopback"};
    options.recovery.rejoin_timeout = 60s;
    clients.push_back(join(options, odd_schema()));
    ASSERT_NE(clients[task], nullptr);
    if (task == 0) fill_initial(*clients[0]);
    ASSERT_TRUE(clients[task]->start().ok());
  }
  ASSERT_TRUE(eventually([&] { return cluster.server(0).stats()->backup() == "level"; }));
  cluster.stop(0);
  network.refuse = 3;
  std::thread step([&] { make_step(*clients[0], 0); });
  make_step(*clients[1], 1);
  step.join();
  EXPECT_EQ(network.refuse, 0);
  for (const std::unique_ptr<Client>& client : clients) {
    check_first_step(*client);
    EXPECT_EQ(client->statistics().now().takeovers, 1u);
    EXPECT_EQ(client->statistics().now().rejoins, 0u);
  }
}

/// A worker had tried for 20 s to connect to a backup that was lost after it had taken over.
TEST(Takeover, ABackupThatIsLostBeforeItsPathEndsTheWait) {
  const Watchdog watchdog;
  transport::loopback::add_to_transports();
  RefusingNetwork network;
  Cluster cluster({.ps_count = 1, .worker_count = 1, .transports = {"loopback"}, .backups = true});
  ClientOptions options = cluster.options(0);
  options.transport.order = {"loopback"};
  const std::unique_ptr<Client> client = join(options, odd_schema());
  ASSERT_NE(client, nullptr);
  fill_initial(*client);
  ASSERT_TRUE(client->start().ok());
  ASSERT_TRUE(eventually([&] { return cluster.server(0).stats()->backup() == "level"; }));
  network.on_refusal = [&] { cluster.stop(1); };
  network.refuse = 1'000'000;
  cluster.stop(0);
  const CapturedLog log;
  fill_gradients(*client, 0, 1);
  client->exchange();
  EXPECT_EQ(client->wait().code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(network.on_refusal, nullptr) << "it was called";
  // At the end of the 20 s, the text is that of the control connection.
  EXPECT_THAT(log.text(), ::testing::HasSubstr("its backup did not take over: shard 0"));
}

}  // namespace
}  // namespace gradrail::worker
