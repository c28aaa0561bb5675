#include "ps/server.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <map>
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
#include "tests/ps/checkpoint/checkpoint_files.h"

namespace gradrail::ps {
namespace {

using namespace std::chrono_literals;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

Server::Options local(uint16_t port = 0) {
  return {.listen_address = fmt::format("127.0.0.1:{}", port),
          .advertised_host = "127.0.0.1",
          .shard_count = 2,
          .transports = {"shm", "tcp"},
          .worker_names = {"w0:1", "w1:2"}};
}

/// Calls without a client library, so that they may be wrong.
class Caller {
 public:
  explicit Caller(uint16_t port, const std::string& secret = "") {
    const auto channel =
        open_channel(fmt::format("127.0.0.1:{}", port), grpc::InsecureChannelCredentials(), secret, {}, 20s);
    EXPECT_TRUE(channel.ok()) << channel.status();
    stub_ = proto::Control::NewStub(channel.value());
  }

  template <typename Request, typename Reply>
  grpc::Status call(Method<Request, Reply> method, const Request& request, Reply& reply) {
    return ps::call(*stub_, method, 20s, request, reply);
  }
  grpc::Status join(const proto::JoinRequest& request) {
    proto::JoinReply reply;
    return join(request, reply);
  }
  /// The reply to one ping. Without housekeep() the end of the stream has no effect here.
  proto::HeartbeatReply heartbeat(const proto::Member& member) {
    grpc::ClientContext context;
    set_deadline(context, 20s);
    const auto stream = stub_->Heartbeat(&context);
    proto::Ping ping;
    *ping.mutable_member() = member;
    proto::HeartbeatReply reply;
    EXPECT_TRUE(stream->Write(ping) && stream->Read(&reply));
    context.TryCancel();
    return reply;
  }
  /// A heartbeat that ends before its first ping.
  void begin_heartbeat_and_end(const proto::Member& member) {
    grpc::ClientContext context;
    set_deadline(context, 20s);
    context.AddMetadata(kMemberHeader, member.SerializeAsString());
    const auto stream = stub_->Heartbeat(&context);
    EXPECT_TRUE(stream->WritesDone());
    EXPECT_TRUE(stream->Finish().ok());
  }
  grpc::Status join(const proto::JoinRequest& request, proto::JoinReply& reply) {
    return call(&proto::Control::Stub::Join, request, reply);
  }

 private:
  std::unique_ptr<proto::Control::Stub> stub_;
};

proto::JoinRequest good_join() {
  proto::JoinRequest request;
  request.set_protocol_version(kProtocolVersion);
  request.mutable_member()->set_incarnation(1);
  to_proto({{"w", {10}}}, request);
  *request.mutable_training() = to_proto(Training{.bucket_bytes = 64});
  request.set_total_shards(2);
  return request;
}

/// All parameters have one value, which identifies the step.
void write_sets(const TemporaryFolder& folder, std::initializer_list<uint64_t> steps) {
  for (const uint64_t step : steps) {
    Checkpoint checkpoint;
    checkpoint.header = {.schema = {{"w", {10}}}, .range = {0, 10}, .global_step = step, .saved_us = step};
    checkpoint.parameters.assign(10, static_cast<float>(step));
    const std::string name = checkpoint_file_name(step, step, 0, 1);
    ASSERT_TRUE(write_checkpoint(folder.file(name), view(checkpoint)).ok());
  }
}

struct Joined {
  grpc::Status status;
  proto::JoinReply reply;
};

Joined join_new_server(const TemporaryFolder& folder, const proto::JoinRequest& request) {
  Server::Options options = local();
  options.checkpoint_dir = folder.path();
  const auto server = Server::start(options);
  EXPECT_TRUE(server.ok()) << server.status();
  Joined joined;
  joined.status = Caller((*server)->port()).join(request, joined.reply);
  return joined;
}

/// The tasks of a run read one folder at different moments, and a file may be damaged in between.
TEST(Server, BeginsFromTheSetThatAnotherTaskBeganFrom) {
  const TemporaryFolder folder;
  write_sets(folder, {100, 200});
  const Joined first = join_new_server(folder, good_join());
  ASSERT_TRUE(first.status.ok()) << first.status.error_message();
  EXPECT_EQ(first.reply.began_from().global_step(), 200u);
  write_sets(folder, {300});
  proto::JoinRequest request = good_join();
  *request.mutable_begin_from() = first.reply.began_from();
  const Joined second = join_new_server(folder, request);
  ASSERT_TRUE(second.status.ok()) << second.status.error_message();
  EXPECT_EQ(second.reply.began_from().global_step(), 200u);
  EXPECT_EQ(second.reply.global_step(), 200u);

  request.mutable_begin_from()->set_global_step(250);
  const Joined without = join_new_server(folder, request);
  EXPECT_EQ(without.status.error_code(), grpc::StatusCode::FAILED_PRECONDITION);
  EXPECT_THAT(without.status.error_message(), HasSubstr("step 250 is missing, but another ps task has restored"));

  request.mutable_begin_from()->clear_global_step();
  const Joined anew = join_new_server(folder, request);
  ASSERT_TRUE(anew.status.ok()) << anew.status.error_message();
  EXPECT_FALSE(anew.reply.initialised());
  EXPECT_FALSE(anew.reply.began_from().has_global_step());
}

TEST(Server, PortInUseIsNamed) {
  const auto first = Server::start(local());
  ASSERT_TRUE(first.ok()) << first.status();
  const absl::Status second = Server::start(local((*first)->port())).status();
  EXPECT_TRUE(absl::IsFailedPrecondition(second)) << second;
  EXPECT_THAT(std::string(message_of(second)), HasSubstr(fmt::format("127.0.0.1:{}", (*first)->port())));
}

TEST(Server, AddressOfAnotherHostIsRefused) {
  Server::Options options = local();
  options.listen_address = "192.0.2.1:2222";  // TEST-NET-1: no host has it
  EXPECT_TRUE(absl::IsFailedPrecondition(Server::start(options).status()));
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
            grpc::StatusCode::FAILED_PRECONDITION)
      << "the gate refuses tasks without a proof as older ones";
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
  EXPECT_EQ(reply.first_step(), UINT64_MAX);
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

TEST(Server, WithoutMembersAnotherGroupMayBeginAnew) {
  const auto server = Server::start(local());
  ASSERT_TRUE(server.ok()) << server.status();
  Caller caller((*server)->port());
  proto::JoinRequest first = good_join(), second = good_join();
  first.set_group(1);
  second.set_group(2);
  second.mutable_member()->set_incarnation(2);
  ASSERT_TRUE(caller.join(first).ok());
  EXPECT_EQ(caller.join(second).error_code(), grpc::StatusCode::OUT_OF_RANGE);
  proto::LeaveRequest leave;
  *leave.mutable_member() = first.member();
  proto::LeaveReply left;
  ASSERT_TRUE(caller.call(&proto::Control::Stub::Leave, leave, left).ok());
  const grpc::Status joined = caller.join(second);
  EXPECT_TRUE(joined.ok()) << joined.error_message();
}

/// A worker that starts while a ps is down may join before the workers that know the base of the run.
TEST(Server, ANewcomerReceivesTheBaseOfTheRun) {
  const TemporaryFolder folder;
  write_sets(folder, {200});
  Server::Options options = local();
  options.checkpoint_dir = folder.path();
  const auto server = Server::start(options);
  ASSERT_TRUE(server.ok()) << server.status();
  Caller caller((*server)->port());
  proto::JoinRequest newcomer = good_join();
  newcomer.mutable_training()->set_mode("sync");
  newcomer.mutable_training()->set_worker_count(2);
  proto::JoinRequest comes_back = newcomer;
  comes_back.mutable_member()->set_task_index(1);
  comes_back.set_left_group(5);
  comes_back.set_run_base(50);
  proto::JoinReply first, second;
  ASSERT_TRUE(caller.join(newcomer, first).ok());
  EXPECT_EQ(first.base_step(), 200);
  EXPECT_EQ(caller.heartbeat(newcomer.member()).run_base(), 200);
  ASSERT_TRUE(caller.join(comes_back, second).ok());
  EXPECT_EQ(second.base_step(), 50);
  EXPECT_EQ(caller.heartbeat(newcomer.member()).run_base(), 50);
}

/// The first worker decides the number of the run; a returned worker restores it, and a set of another run is refused.
TEST(Server, AReturnedWorkerKeepsItsRun) {
  const TemporaryFolder folder;
  Checkpoint checkpoint;
  checkpoint.header = {.schema = {{"w", {10}}}, .range = {0, 10}, .global_step = 200, .saved_us = 200, .run = 77};
  checkpoint.parameters.assign(10, 1.0f);
  ASSERT_TRUE(write_checkpoint(folder.file(checkpoint_file_name(200, 200, 0, 1)), view(checkpoint)).ok());
  EXPECT_EQ(join_new_server(folder, good_join()).reply.run(), 77u) << "a new run continues that of the set";

  proto::JoinRequest returned = good_join();
  returned.set_group(6);
  returned.set_left_group(5);
  returned.set_run(78);
  const Joined other = join_new_server(folder, returned);
  ASSERT_TRUE(other.status.ok()) << other.status.error_message();
  EXPECT_EQ(other.reply.run(), 78u);
  EXPECT_FALSE(other.reply.began_from().has_global_step()) << "the chief's parameters are used";

  Server::Options options = local();
  options.checkpoint_dir = folder.path();
  const auto server = Server::start(options);
  ASSERT_TRUE(server.ok()) << server.status();
  Caller caller((*server)->port());
  proto::JoinRequest newcomer = good_join();
  newcomer.set_group(6);
  returned.mutable_member()->set_task_index(1);
  ASSERT_TRUE(caller.join(newcomer).ok());
  const grpc::Status refused = caller.join(returned);
  EXPECT_EQ(refused.error_code(), grpc::StatusCode::FAILED_PRECONDITION);
  EXPECT_THAT(refused.error_message(), HasSubstr("has restored step 200 of another run"));
}

TEST(Server, ANewcomerReceivesTheRunOfTheReturned) {
  const auto server = Server::start(local());
  ASSERT_TRUE(server.ok()) << server.status();
  Caller caller((*server)->port());
  proto::JoinRequest newcomer = good_join();
  newcomer.set_group(6);
  newcomer.mutable_member()->set_task_index(1);
  proto::JoinRequest returned = good_join();
  returned.set_group(6);
  returned.set_left_group(5);
  returned.set_run(78);
  proto::JoinReply first, second;
  ASSERT_TRUE(caller.join(newcomer, first).ok());
  EXPECT_EQ(first.run(), 6u);
  ASSERT_TRUE(caller.join(returned, second).ok());
  EXPECT_EQ(second.run(), 78u);
  EXPECT_EQ(caller.heartbeat(newcomer.member()).run(), 78u);
}

TEST(Server, AJoinForAnotherProcessIsUnavailable) {
  const auto server = Server::start(local());
  ASSERT_TRUE(server.ok()) << server.status();
  proto::JoinRequest request = good_join();
  request.set_process(1);
  const grpc::Status joined = Caller((*server)->port()).join(request);
  EXPECT_EQ(joined.error_code(), grpc::StatusCode::UNAVAILABLE);
  EXPECT_THAT(joined.error_message(), HasSubstr("started again"));
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

}  // namespace
}  // namespace gradrail::ps
