#pragma once

#include <gtest/gtest.h>

#include <chrono>
#include <initializer_list>
#include <memory>
#include <string>

#include "fmt/format.h"
#include "grpcpp/grpcpp.h"
#include "ps/admission/channel.h"
#include "ps/protocol/control.grpc.pb.h"
#include "ps/protocol/control_call.h"
#include "ps/protocol/training.h"
#include "ps/server.h"
#include "tests/ps/checkpoint/checkpoint_files.h"

namespace gradrail::ps {

using namespace std::chrono_literals;

inline Server::Options local(uint16_t port = 0) {
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
  proto::Control::Stub& stub() { return *stub_; }
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

inline proto::JoinRequest good_join() {
  proto::JoinRequest request;
  request.set_protocol_version(kProtocolVersion);
  request.mutable_member()->set_incarnation(1);
  to_proto({{"w", {10}}}, request);
  *request.mutable_training() = to_proto(Training{.bucket_bytes = 64});
  request.set_total_shards(2);
  return request;
}

/// All parameters have one value, which identifies the step.
inline void write_sets(const TemporaryFolder& folder, std::initializer_list<uint64_t> steps) {
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

inline Joined join_new_server(const TemporaryFolder& folder, const proto::JoinRequest& request) {
  Server::Options options = local();
  options.checkpoint_dir = folder.path();
  const auto server = Server::start(options);
  EXPECT_TRUE(server.ok()) << server.status();
  Joined joined;
  joined.status = Caller((*server)->port()).join(request, joined.reply);
  return joined;
}

}  // namespace gradrail::ps
