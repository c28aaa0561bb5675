// How the ps tasks of a run agree on its servers, its checkpoint and its number.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "ps/server.h"
#include "tests/ps/server_caller.h"

namespace gradrail::ps {
namespace {

using ::testing::HasSubstr;

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

/// A worker leaves the tasks that it has not lost until it has found the lost one. It joins again and repeats its step.
TEST(Server, AStepWaitsForAWorkerThatSearchesForAnotherTask) {
  const auto server = Server::start(local());
  ASSERT_TRUE(server.ok()) << server.status();
  Caller caller((*server)->port());
  proto::JoinRequest request = good_join();
  request.mutable_training()->set_mode("sync");
  request.mutable_training()->set_worker_count(2);
  ASSERT_TRUE(caller.join(request).ok());
  request.mutable_member()->set_task_index(1);
  ASSERT_TRUE(caller.join(request).ok());

  proto::LeaveRequest leave;
  *leave.mutable_member() = request.member();
  leave.set_returns(true);
  proto::LeaveReply left;
  ASSERT_TRUE(caller.call(&proto::Control::Stub::Leave, leave, left).ok());
  proto::StatsReply stats;
  ASSERT_TRUE(caller.call(&proto::Control::Stub::Stats, {}, stats).ok());
  EXPECT_EQ(stats.live_workers_size(), 1);
  EXPECT_EQ(stats.waiting_for_size(), 2) << stats.DebugString();
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

}  // namespace
}  // namespace gradrail::ps
