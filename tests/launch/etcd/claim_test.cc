#include "launch/etcd/claim.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <future>
#include <set>

#include "tests/launch/etcd/fake_etcd.h"

namespace gradrail::launch {
namespace {

using ::testing::HasSubstr;
using Reply = std::optional<grpc::Status>;

class ClaimTest : public ::testing::Test {
 protected:
  MembershipRequest request(const std::string& job) {
    return {.where = {.endpoints = {}, .job = "mnist", .text = "etcd://fake/mnist"},
            .job = job,
            .index = std::nullopt,
            .sizes = Sizes{.ps = 2, .workers = 3},
            .host = "",
            .timeout = std::chrono::seconds(30),
            .say = [](const std::string&) {}};
  }
  absl::StatusOr<Claim> claim(const MembershipRequest& request) { return claim_place(*etcd_.client(), request); }
  void occupy(const std::string& task, Sizes sizes = {.ps = 2, .workers = 3}) {
    etcd_.put("/gradrail/mnist/" + task, to_text({.address = "10.0.0.1", .id = "other", .sizes = sizes}));
  }

  FakeEtcd etcd_;
};

TEST_F(ClaimTest, TheFirstFreePlaceIsTaken) {
  occupy("worker/0");
  occupy("worker/2");
  const auto taken = claim(request("worker"));
  ASSERT_TRUE(taken.ok()) << taken.status();
  EXPECT_EQ(taken->task.index, 1u);
  EXPECT_EQ(taken->record.address, "127.0.0.1") << "the address of the connection to etcd";
  EXPECT_EQ(etcd_.value("/gradrail/mnist/worker/1"), to_text(taken->record));
  EXPECT_EQ(etcd_.lease("/gradrail/mnist/worker/1"), taken->lease);
}

TEST_F(ClaimTest, ATaskThatClaimsBetweenLookAndClaimKeepsItsPlace) {
  etcd_.before = [&](const std::string& method, int count) -> Reply {
    if (method == "Txn" && count <= 2) occupy(count == 1 ? "worker/0" : "worker/1");
    return std::nullopt;
  };
  const auto taken = claim(request("worker"));
  ASSERT_TRUE(taken.ok()) << taken.status();
  EXPECT_EQ(taken->task.index, 2u);
  EXPECT_EQ(task_record_from(etcd_.value("/gradrail/mnist/worker/0"))->id, "other");
}

TEST_F(ClaimTest, SizesSaidBetweenLookAndClaimCount) {
  etcd_.before = [&](const std::string& method, int count) -> Reply {
    if (method == "Txn" && count == 1) occupy("ps/0", {.ps = 1, .workers = 3});
    return std::nullopt;
  };
  const auto taken = claim(request("worker"));
  EXPECT_EQ(taken.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(taken.status().message()), HasSubstr("--ps 2: the current run has --ps 1"));
}

TEST_F(ClaimTest, AnAnswerThatWasLostDoesNotTakeTwoPlaces) {
  etcd_.after = [](const std::string& method, int count) -> Reply {
    if (method == "Txn" && count == 1) return grpc::Status(grpc::StatusCode::UNAVAILABLE, "cut off");
    return std::nullopt;
  };
  const auto taken = claim(request("worker"));
  ASSERT_TRUE(taken.ok()) << taken.status();
  EXPECT_EQ(taken->task.index, 0u);
  EXPECT_EQ(etcd_.writes(), 1);
  EXPECT_EQ(etcd_.lease("/gradrail/mnist/worker/0"), taken->lease);
}

TEST_F(ClaimTest, AnAnswerThatWasLostAtOneEndpointDoesNotTakeTwoPlaces) {
  etcd_.after = [](const std::string& method, int count) -> Reply {
    if (method == "Txn" && count == 1) return grpc::Status(grpc::StatusCode::UNAVAILABLE, "cut off");
    return std::nullopt;
  };
  const auto taken = claim_place(*etcd_.client(2), request("worker"));
  ASSERT_TRUE(taken.ok()) << taken.status();
  EXPECT_EQ(taken->task.index, 0u);
  EXPECT_EQ(etcd_.writes(), 1);
}

TEST_F(ClaimTest, ALeaseThatEndedBeforeTheClaimIsReplaced) {
  etcd_.after = [&](const std::string& method, int count) -> Reply {
    if (method == "LeaseGrant" && count == 1) etcd_.end_lease(100);
    return std::nullopt;
  };
  const auto taken = claim(request("ps"));
  ASSERT_TRUE(taken.ok()) << taken.status();
  EXPECT_EQ(etcd_.lease("/gradrail/mnist/ps/0"), taken->lease);
  EXPECT_NE(taken->lease, 100);
}

TEST_F(ClaimTest, ManyAtOnceGetAPlaceEach) {
  std::vector<std::future<absl::StatusOr<Claim>>> claims;
  claims.reserve(16);
  for (int i = 0; i < 16; ++i)
    claims.push_back(std::async(std::launch::async, [&] { return claim(request("worker")); }));
  std::set<uint32_t> places;
  for (auto& each : claims) {
    const auto taken = each.get();
    ASSERT_TRUE(taken.ok()) << taken.status();
    EXPECT_TRUE(places.insert(taken->task.index).second) << taken->task.index;
  }
  EXPECT_EQ(*places.rbegin(), 15u);
}

TEST_F(ClaimTest, ABusyEtcdIsWaitedFor) {
  etcd_.before = [](const std::string&, int count) -> Reply {
    if (count < 4) return grpc::Status(grpc::StatusCode::UNAVAILABLE, "etcdserver: no leader");
    return std::nullopt;
  };
  EXPECT_TRUE(claim(request("ps")).ok());
}

TEST_F(ClaimTest, TimeoutEnds) {
  MembershipRequest impatient = request("ps");
  impatient.timeout = std::chrono::milliseconds(300);
  etcd_.before = [](const std::string&, int) -> Reply {
    return grpc::Status(grpc::StatusCode::UNAVAILABLE, "refused");
  };
  const auto taken = claim(impatient);
  EXPECT_EQ(taken.status().code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_THAT(std::string(taken.status().message()), HasSubstr(etcd_.url() + ": refused (is it started"));
}

}  // namespace
}  // namespace gradrail::launch
