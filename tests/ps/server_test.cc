#include "ps/server.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <filesystem>
#include <iterator>
#include <map>
#include <memory>
#include <sstream>
#include <thread>
#include <vector>

#include "base/mutex.h"
#include "base/status.h"
#include "fmt/format.h"
#include "grpcpp/grpcpp.h"
#include "ps/admission/channel.h"
#include "ps/protocol/control.grpc.pb.h"
#include "ps/protocol/control_call.h"
#include "ps/protocol/training.h"
#include "tests/base/captured_log.h"
#include "tests/ps/server_caller.h"

namespace gradrail::ps {
namespace {

using namespace std::chrono_literals;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(Server, PortInUseIsNamed) {
  const auto first = Server::start(local());
  ASSERT_TRUE(first.ok()) << first.status();
  const absl::Status second = Server::start(local((*first)->port())).status();
  EXPECT_TRUE(absl::IsFailedPrecondition(second)) << second;
  EXPECT_THAT(std::string(message_of(second)), HasSubstr(fmt::format("127.0.0.1:{}", (*first)->port())));
}

TEST(Server, UnknownTransportIsNamed) {
  Server::Options options = local();
  options.transports = {"pigeon"};
  EXPECT_THAT(std::string(message_of(Server::start(options).status())), HasSubstr("no transport 'pigeon'"));
}

TEST(Server, StopEndsTheWait) {
  const auto server = Server::start(local());
  ASSERT_TRUE(server.ok()) << server.status();
  std::atomic<bool> stop = false;
  std::thread stopper([&] { stop = true; });
  EXPECT_TRUE((*server)->wait_finished(stop).ok());
  stopper.join();
}

/// A second join() of a program waited for a server that was at its end, and asked whether it is started.
TEST(Server, AJoinAfterTheEndOfARunSaysSo) {
  Server::Options options = local();
  options.worker_names = {"w0:1"};
  const auto server = Server::start(options);
  ASSERT_TRUE(server.ok()) << server.status();
  Caller caller((*server)->port());
  proto::JoinRequest request = good_join();
  ASSERT_TRUE(caller.join(request).ok());
  proto::LeaveRequest leave;
  *leave.mutable_member() = request.member();
  proto::LeaveReply left;
  ASSERT_TRUE(caller.call(&proto::Control::Stub::Leave, leave, left).ok());

  request.mutable_member()->set_incarnation(2);
  proto::DescribeRequest describe;
  describe.set_protocol_version(kProtocolVersion);
  proto::DescribeReply described;
  for (const grpc::Status& refused :
       {caller.join(request), caller.call(&proto::Control::Stub::Describe, describe, described)}) {
    EXPECT_EQ(refused.error_code(), grpc::StatusCode::FAILED_PRECONDITION);
    EXPECT_THAT(refused.error_message(), HasSubstr("the run has ended: all of its workers have left"));
  }
}

TEST(Server, AStopThatLeavesWorkersNamesThem) {
  const CapturedLog log;
  {
    const auto server = Server::start(local());
    ASSERT_TRUE(server.ok()) << server.status();
    proto::JoinRequest request = good_join();
    request.set_worker_name("w0:1");
    ASSERT_TRUE(Caller((*server)->port()).join(request).ok());
    const std::atomic<bool> stop = true;
    EXPECT_TRUE((*server)->wait_finished(stop, 50ms).ok());
  }
  EXPECT_THAT(log.text(), HasSubstr("after the limit of 0.05 s for workers to leave: this task ends before worker 0"));
}

TEST(Server, SummaryBeforeTheFirstJoin) {
  const auto server = Server::start(local());
  ASSERT_TRUE(server.ok()) << server.status();
  EXPECT_THAT((*server)->summary(), ElementsAre("global step 0, 0 bucket updates, 2 shards"));
}

TEST(Server, DescribesItself) {
  const auto server = Server::start(local());
  ASSERT_TRUE(server.ok()) << server.status();
  Caller caller((*server)->port());
  proto::DescribeRequest request;
  proto::DescribeReply reply;
  request.set_protocol_version(kProtocolVersion + 1);
  const grpc::Status other = caller.call(&proto::Control::Stub::Describe, request, reply);
  EXPECT_EQ(other.error_code(), grpc::StatusCode::FAILED_PRECONDITION);
  EXPECT_THAT(other.error_message(), HasSubstr("install the same gradrail on all hosts"));
  request.set_protocol_version(kProtocolVersion);
  ASSERT_TRUE(caller.call(&proto::Control::Stub::Describe, request, reply).ok());
  EXPECT_EQ(reply.shard_count(), 2u);
  ASSERT_EQ(reply.transports_size(), 2);
  EXPECT_EQ(reply.transports(0).name(), "shm");
}

TEST(Server, ACallerWithoutTheSecretIsRefused) {
  Server::Options options = local();
  options.security.secret = "a secret of this job";
  const auto server = Server::start(options);
  ASSERT_TRUE(server.ok()) << server.status();
  const std::string address = fmt::format("127.0.0.1:{}", (*server)->port());
  const auto credentials = grpc::InsecureChannelCredentials();
  for (const char* secret : {"", "another secret of it"})
    EXPECT_TRUE(absl::IsUnauthenticated(open_channel(address, credentials, secret, {}, 20s).status())) << secret;
  // A channel without a proof reaches no handler.
  const auto direct = proto::Control::NewStub(grpc::CreateChannel(address, credentials));
  proto::DescribeReply described;
  proto::DescribeRequest request;
  request.set_protocol_version(kProtocolVersion);
  EXPECT_EQ(call(*direct, &proto::Control::Stub::Describe, 20s, request, described).error_code(),
            grpc::StatusCode::UNAVAILABLE)
      << "the gate closes a connection that does not begin with its request";
  EXPECT_EQ(described.protocol_version(), 0u);
  Caller caller((*server)->port(), options.security.secret);
  EXPECT_TRUE(caller.call(&proto::Control::Stub::Describe, request, described).ok());
}

/// An attacker on the way can use the proof of a worker for a connection of its own. It does not have the secret.
TEST(Server, WithTlsACallNeedsTheSecretAsWell) {
  const TemporaryFolder folder;
  const std::string certificate = folder.file("ps.pem"), key = folder.file("ps.key");
  const std::string make = fmt::format(
      "openssl req -x509 -nodes -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -days 2 -subj /CN=ps -addext "
      "subjectAltName=IP:127.0.0.1 -keyout {} -out {} 2>/dev/null",
      key, certificate);
  ASSERT_EQ(std::system(make.c_str()), 0);
  Server::Options options = local();
  options.security = {.cert_file = certificate, .key_file = key, .secret = "a secret of this job"};
  const auto server = Server::start(options);
  ASSERT_TRUE(server.ok()) << server.status();
  const auto describe = [&](const std::string& secret_of_calls) {
    const auto credentials = channel_credentials({.trusted_ca_file = certificate, .secret = secret_of_calls});
    EXPECT_TRUE(credentials.ok()) << credentials.status();
    const auto channel =
        open_channel(fmt::format("127.0.0.1:{}", (*server)->port()), *credentials, options.security.secret, {}, 20s);
    EXPECT_TRUE(channel.ok()) << channel.status();
    const auto stub = proto::Control::NewStub(*channel);
    proto::DescribeRequest request;
    request.set_protocol_version(kProtocolVersion);
    proto::DescribeReply reply;
    return call(*stub, &proto::Control::Stub::Describe, 20s, request, reply);
  };
  EXPECT_EQ(describe("").error_code(), grpc::StatusCode::UNAUTHENTICATED);
  EXPECT_EQ(describe("another secret of it").error_code(), grpc::StatusCode::UNAUTHENTICATED);
  const grpc::Status good = describe(options.security.secret);
  EXPECT_TRUE(good.ok()) << good.error_message();
}

TEST(Server, AJoinWithALargeSchemaIsRead) {
  const auto server = Server::start(local());
  ASSERT_TRUE(server.ok()) << server.status();
  Caller caller((*server)->port());
  proto::JoinRequest request = good_join();
  Schema schema;
  for (int i = 0; i < 100'000; ++i)
    schema.push_back({fmt::format("a tensor with quite a long name, number {}", i), {1}});
  request.clear_schema();
  to_proto(schema, request);
  ASSERT_GT(request.ByteSizeLong(), 4u << 20) << "the default limit of gRPC";
  const grpc::Status joined = caller.join(request);
  EXPECT_TRUE(joined.ok()) << joined.error_message();
}

/// The worker takes the minimum over all tasks: a task without buckets must not lower it.
TEST(Server, ATaskWithoutBucketsHasNoFirstStep) {
  const auto server = Server::start(local());
  ASSERT_TRUE(server.ok()) << server.status();
  proto::JoinRequest request = good_join();
  request.clear_schema();
  to_proto({{"w", {2}}}, request);
  request.set_total_shards(4);
  request.set_first_shard(2);
  request.mutable_training()->set_mode("sync");
  request.mutable_training()->set_worker_count(1);
  proto::JoinReply reply;
  const grpc::Status joined = Caller((*server)->port()).join(request, reply);
  ASSERT_TRUE(joined.ok()) << joined.error_message();
  EXPECT_THAT(reply.first_steps(), ::testing::ElementsAre(UINT64_MAX));
}

/// No correct worker sends these requests. Each is refused, and the server continues to serve.
TEST(Server, ImpossibleJoinsAreRefused) {
  const auto server = Server::start(local());
  ASSERT_TRUE(server.ok()) << server.status();
  Caller caller((*server)->port());
  const auto refused = [&](auto change) {
    proto::JoinRequest request = good_join();
    change(request);
    return caller.join(request).error_code();
  };
  using grpc::StatusCode;
  EXPECT_EQ(caller.join({}).error_code(), StatusCode::FAILED_PRECONDITION);
  EXPECT_EQ(refused([](auto& r) { r.clear_schema(); }), StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(refused([](auto& r) { r.mutable_schema(0)->set_shape(0, -1); }), StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(refused([](auto& r) { r.mutable_schema(0)->set_shape(0, INT64_MAX); }), StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(refused([](auto& r) { r.mutable_schema(0)->clear_name(); }), StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(refused([](auto& r) { r.clear_training(); }), StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(refused([](auto& r) { r.mutable_training()->set_bucket_bytes(0); }), StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(refused([](auto& r) { r.mutable_training()->set_bucket_bytes(65); }), StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(refused([](auto& r) { r.set_total_shards(0); }), StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(refused([](auto& r) { r.set_total_shards(1); }), StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(refused([](auto& r) { r.set_total_shards(UINT32_MAX); }), StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(refused([](auto& r) { r.set_first_shard(1); }), StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(refused([](auto& r) { r.set_first_shard(UINT32_MAX); }), StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(refused([](auto& r) { r.mutable_member()->set_task_index(UINT32_MAX); }), StatusCode::INVALID_ARGUMENT);
  const auto sync_with = [](uint32_t workers) {
    return [workers](proto::JoinRequest& r) {
      r.mutable_training()->set_mode("sync");
      r.mutable_training()->set_worker_count(workers);
    };
  };
  EXPECT_EQ(refused(sync_with(0)), StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(refused(sync_with(UINT32_MAX)), StatusCode::INVALID_ARGUMENT);
  const grpc::Status good = caller.join(good_join());
  EXPECT_TRUE(good.ok()) << good.error_message();
}

TEST(Server, OnlyMembersCanUseTheControlPlane) {
  const auto server = Server::start(local());
  ASSERT_TRUE(server.ok()) << server.status();
  Caller caller((*server)->port());
  ASSERT_TRUE(caller.join(good_join()).ok());
  proto::BarrierRequest barrier;
  barrier.mutable_member()->set_incarnation(9);
  barrier.set_timeout_ms(1);
  proto::BarrierReply barrier_reply;
  EXPECT_EQ(caller.call(&proto::Control::Stub::Barrier, barrier, barrier_reply).error_code(),
            grpc::StatusCode::UNAVAILABLE);
  proto::CheckpointRequest checkpoint;
  checkpoint.mutable_member()->set_incarnation(9);
  proto::CheckpointReply checkpoint_reply;
  EXPECT_EQ(caller.call(&proto::Control::Stub::Checkpoint, checkpoint, checkpoint_reply).error_code(),
            grpc::StatusCode::UNAVAILABLE);
  proto::LeaveRequest leave;
  leave.mutable_member()->set_incarnation(9);
  proto::LeaveReply leave_reply;
  EXPECT_TRUE(caller.call(&proto::Control::Stub::Leave, leave, leave_reply).ok()) << "repeating Leave is harmless";
  proto::StatsReply stats;
  ASSERT_TRUE(caller.call(&proto::Control::Stub::Stats, proto::StatsRequest(), stats).ok());
  EXPECT_EQ(stats.live_workers_size(), 1) << "the member is still live";
}

/// The end of its heartbeat names the worker. Without a heartbeat the silence limit counts from the reply to the join.
TEST(Server, AWorkerKilledBeforeItsFirstPingIsLost) {
  for (const bool has_stream : {true, false}) {
    Server::Options options = local();
    options.heartbeat_timeout = has_stream ? 20s : 1s;
    options.worker_names = {"w0:1"};
    const auto server = Server::start(options);
    ASSERT_TRUE(server.ok()) << server.status();
    std::atomic<bool> stop = false;
    std::thread waiter([&] { (*server)->wait_finished(stop).IgnoreError(); });
    Caller caller((*server)->port());
    const proto::JoinRequest request = good_join();
    ASSERT_TRUE(caller.join(request).ok());
    if (has_stream) caller.begin_heartbeat_and_end(request.member());
    const TimePoint deadline = Clock::now() + 8s;
    proto::StatsReply stats;
    do {
      std::this_thread::sleep_for(10ms);
      stats.Clear();
      ASSERT_TRUE(caller.call(&proto::Control::Stub::Stats, proto::StatsRequest(), stats).ok());
    } while (stats.live_workers_size() > 0 && Clock::now() < deadline);
    EXPECT_EQ(stats.live_workers_size(), 0) << has_stream;
    stop = true;
    (*server)->wake();
    waiter.join();
  }
}

/// With rare pings the end of a connection comes before the silence. It may be that of a network that returns.
TEST(Server, AMemberThatPingsRarelyMayJoinAgainAfterItsConnectionEnds) {
  Server::Options options = local();
  const auto server = Server::start(options);
  ASSERT_TRUE(server.ok()) << server.status();
  std::atomic<bool> stop = false;
  std::thread waiter([&] { (*server)->wait_finished(stop).IgnoreError(); });
  Caller caller((*server)->port());
  proto::JoinRequest request = good_join();
  for (uint32_t worker = 0; worker < 130; ++worker) {
    request.mutable_member()->set_task_index(worker);
    request.mutable_member()->set_incarnation(100 + worker);
    ASSERT_TRUE(caller.join(request).ok());
  }
  EXPECT_NEAR(caller.heartbeat(request.member()).next_ping_us(), 780'000, 48'000);
  proto::BarrierRequest barrier;
  *barrier.mutable_member() = request.member();
  barrier.set_name("b");
  proto::BarrierReply reply;
  const TimePoint deadline = Clock::now() + 8s;
  grpc::Status status;
  do {
    std::this_thread::sleep_for(10ms);
    status = caller.call(&proto::Control::Stub::Barrier, barrier, reply);
  } while (status.ok() && Clock::now() < deadline);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::OUT_OF_RANGE) << status.error_message();
  EXPECT_THAT(status.error_message(), HasSubstr("its control connection ended"));
  stop = true;
  (*server)->wake();
  waiter.join();
}

TEST(Server, ABarrierReturnsAfterItsTimeoutAndNamesTheMissing) {
  const auto server = Server::start(local());
  ASSERT_TRUE(server.ok()) << server.status();
  Caller caller((*server)->port());
  ASSERT_TRUE(caller.join(good_join()).ok());
  proto::BarrierRequest barrier;
  barrier.mutable_member()->set_incarnation(1);
  barrier.set_name("b");
  barrier.set_generation(1);
  barrier.set_timeout_ms(50);
  proto::BarrierReply reply;
  ASSERT_TRUE(caller.call(&proto::Control::Stub::Barrier, barrier, reply).ok());
  EXPECT_FALSE(reply.complete());
  EXPECT_THAT(reply.missing(), ElementsAre("worker 1 (w1:2)"));
}

/// Each call held a thread of the server.
TEST(Server, WorkersThatWaitInABarrierHoldNoThread) {
  constexpr uint32_t kMembers = 200;
  const auto server = Server::start(local());
  ASSERT_TRUE(server.ok()) << server.status();
  Caller caller((*server)->port());
  proto::JoinRequest join = good_join();
  for (uint32_t worker = 0; worker < kMembers; ++worker) {
    join.mutable_member()->set_task_index(worker);
    join.mutable_member()->set_incarnation(100 + worker);
    ASSERT_TRUE(caller.join(join).ok());
  }
  struct Wait {
    grpc::ClientContext context;
    proto::BarrierRequest request;
    proto::BarrierReply reply;
    std::atomic<bool> is_over = false;
    grpc::Status status;
  };
  std::vector<std::unique_ptr<Wait>> waits;
  const auto enter = [&](uint32_t worker) {
    Wait& wait = *waits.emplace_back(std::make_unique<Wait>());
    wait.request.mutable_member()->set_task_index(worker);
    wait.request.mutable_member()->set_incarnation(100 + worker);
    wait.request.set_name("b");
    wait.request.set_generation(1);
    wait.request.set_live_only(true);
    wait.request.set_timeout_ms(10'000);
    caller.stub().async()->Barrier(&wait.context, &wait.request, &wait.reply, [&wait](const grpc::Status& status) {
      wait.status = status;
      wait.is_over = true;
    });
  };
  const auto threads = [] {
    return std::distance(std::filesystem::directory_iterator("/proc/self/task"), std::filesystem::directory_iterator());
  };
  const auto over = [&] {
    return std::count_if(waits.begin(), waits.end(), [](const auto& wait) { return wait->is_over.load(); });
  };
  const auto threads_before = threads();
  for (uint32_t worker = 1; worker < kMembers; ++worker) enter(worker);
  std::this_thread::sleep_for(300ms);
  EXPECT_EQ(over(), 0);
  EXPECT_LT(threads(), threads_before + 50);
  waits[0]->context.TryCancel();  // it stays entered
  enter(0);
  for (const TimePoint deadline = Clock::now() + 8s; over() < kMembers && Clock::now() < deadline;)
    std::this_thread::sleep_for(10ms);
  ASSERT_EQ(over(), kMembers);
  for (size_t i = 1; i < waits.size(); ++i) EXPECT_TRUE(waits[i]->status.ok() && waits[i]->reply.complete()) << i;
}

TEST(Server, EachShardsThreadIsAnnouncedBeforeItsMemory) {
  Mutex mutex;
  std::map<uint32_t, std::vector<std::thread::id>> threads;  // by shard: of its start, then of its memory
  Server::Options options = local();
  options.on_shard_thread = [&](uint32_t shard) {
    const MutexLock lock(mutex);
    EXPECT_TRUE(threads[shard].empty());
    threads[shard].push_back(std::this_thread::get_id());
  };
  std::map<uint32_t, const std::byte*> memory;
  options.place_memory = [&](uint32_t shard, const MemorySpan& span) {
    const MutexLock lock(mutex);
    threads[shard].push_back(std::this_thread::get_id());
    memory[shard] = span.data;
  };
  const auto server = Server::start(options);
  ASSERT_TRUE(server.ok()) << server.status();
  for (const MemorySpan& span : (*server)->parameters_memory()) EXPECT_EQ(span.data, nullptr);
  Caller caller((*server)->port());
  ASSERT_TRUE(caller.join(good_join()).ok());
  const std::vector<MemorySpan> parameters = (*server)->parameters_memory();
  ASSERT_EQ(parameters.size(), 2u);
  const MutexLock lock(mutex);
  ASSERT_EQ(threads.size(), 2u);
  for (const auto& [shard, seen] : threads) {
    EXPECT_EQ(seen, std::vector<std::thread::id>(2, seen[0])) << "shard " << shard;
    EXPECT_EQ(memory[shard], parameters[shard].data);
  }
  EXPECT_NE(threads[0][0], threads[1][0]);
}

TEST(Server, CheckpointWithoutAFolderSaysSo) {
  const auto server = Server::start(local());
  ASSERT_TRUE(server.ok()) << server.status();
  Caller caller((*server)->port());
  ASSERT_TRUE(caller.join(good_join()).ok());
  proto::CheckpointRequest request;
  request.mutable_member()->set_incarnation(1);
  proto::CheckpointReply reply;
  const grpc::Status refused = caller.call(&proto::Control::Stub::Checkpoint, request, reply);
  EXPECT_EQ(refused.error_code(), grpc::StatusCode::FAILED_PRECONDITION);
  EXPECT_THAT(refused.error_message(), HasSubstr("--checkpoint_dir"));
}

/// "Unexpected error in RPC handling", and exit code 1.
TEST(Server, AModelBeyondTheMemoryIsRefusedAndTheNextOneServed) {
  const auto server = Server::start(local());
  ASSERT_TRUE(server.ok()) << server.status();
  Caller caller((*server)->port());
  proto::JoinRequest large = good_join();
  constexpr int64_t kElements = int64_t{1} << 37;
  large.clear_schema();
  to_proto({{"w", {kElements}}}, large);
  *large.mutable_training() = to_proto(Training{.bucket_bytes = 1 << 30});
  const grpc::Status refused = caller.join(large);
  EXPECT_EQ(refused.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED) << refused.error_message();
  EXPECT_THAT(refused.error_message(),
              ::testing::AllOf(HasSubstr(fmt::format("{} parameters with 1 values each need {} bytes in this ps task",
                                                     kElements, kElements * 4)),
                               HasSubstr("use more ps tasks, or a smaller model")));
  EXPECT_TRUE(caller.join(good_join()).ok());
}

}  // namespace
}  // namespace gradrail::ps
