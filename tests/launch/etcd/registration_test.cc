#include "launch/etcd/registration.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <thread>

#include "launch/etcd/ps_lookup.h"
#include "tests/launch/etcd/fake_etcd.h"

namespace gradrail::launch {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using Reply = std::optional<grpc::Status>;

const std::string kKey = "/gradrail/mnist/ps/0";

class RegistrationTest : public ::testing::Test {
 protected:
  RendezvousUrl where(size_t endpoints = 1) const {
    return {.text = "etcd://fake/mnist", .endpoints = std::vector<std::string>(endpoints, etcd_.url()), .job = "mnist"};
  }
  absl::StatusOr<std::unique_ptr<Registration>> take(size_t endpoints = 1,
                                                     Duration timeout = std::chrono::seconds(30)) {
    return Registration::take(
        {.where = where(endpoints), .ps_index = 0, .host = "", .timeout = timeout, .say = [](const std::string&) {}});
  }
  template <typename Condition>
  static bool soon(Condition condition) {
    const char* const patience = std::getenv("GRADRAIL_PATIENCE");
    const TimePoint deadline = Clock::now() + std::chrono::seconds(10 * (patience ? std::max(1, atoi(patience)) : 1));
    while (!condition() && Clock::now() < deadline) std::this_thread::sleep_for(std::chrono::milliseconds(10));
    return condition();
  }
  void lose_answer_of_first_write() {
    etcd_.after = [](const std::string& method, int count) -> Reply {
      if (method == "Txn" && count == 1) return grpc::Status(grpc::StatusCode::UNAVAILABLE, "cut off");
      return std::nullopt;
    };
  }

  FakeEtcd etcd_;
};

TEST_F(RegistrationTest, AnAddressIsPublishedAtOnceUnderTheSameLease) {
  const auto registration = take();
  ASSERT_TRUE(registration.ok()) << registration.status();
  EXPECT_EQ((*registration)->host(), "127.0.0.1") << "the address of the connection to etcd";
  EXPECT_EQ(etcd_.value(kKey), "127.0.0.1");
  const int64_t lease = etcd_.lease(kKey);
  EXPECT_NE(lease, 0);
  (*registration)->publish(4000);
  EXPECT_TRUE(soon([&] { return etcd_.value(kKey) == "127.0.0.1:4000"; }));
  EXPECT_EQ(etcd_.lease(kKey), lease);
}

TEST_F(RegistrationTest, TheEndRemovesTheKey) {
  ASSERT_TRUE(take().ok());
  EXPECT_EQ(etcd_.value(kKey), "");
}

TEST_F(RegistrationTest, AWriteWhoseAnswerWasLostIsOwn) {
  lose_answer_of_first_write();
  const auto registration = take();
  ASSERT_TRUE(registration.ok()) << registration.status();
  EXPECT_EQ(etcd_.writes(), 1);
}

TEST_F(RegistrationTest, AWriteWhoseAnswerOneEndpointLostIsOwn) {
  lose_answer_of_first_write();
  const auto registration = take(2);
  ASSERT_TRUE(registration.ok()) << registration.status();
  EXPECT_EQ(etcd_.writes(), 1);
}

TEST_F(RegistrationTest, TheKeyOfAKilledTaskIsWaitedFor) {
  const int64_t lease = *etcd_.client()->grant(kLeaseSeconds);
  etcd_.put(kKey, "10.0.0.9:4000", lease);
  etcd_.after = [&](const std::string& method, int count) -> Reply {
    if (method == "Range" && count == 2) etcd_.end_lease(lease);
    return std::nullopt;
  };
  const auto registration = take();
  ASSERT_TRUE(registration.ok()) << registration.status();
  EXPECT_NE(etcd_.lease(kKey), lease);
}

TEST_F(RegistrationTest, TheErrorNamesTheTaskThatHoldsTheKey) {
  etcd_.put(kKey, "10.0.0.9:4000");
  const auto registration = take(1, std::chrono::milliseconds(300));
  EXPECT_EQ(registration.status().code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_THAT(std::string(registration.status().message()),
              HasSubstr("another task holds the key " + kKey + " of this task, at 10.0.0.9:4000"));
  EXPECT_EQ(etcd_.value(kKey), "10.0.0.9:4000");
}

TEST_F(RegistrationTest, ABusyEtcdIsWaitedFor) {
  etcd_.before = [](const std::string&, int count) -> Reply {
    if (count < 4) return grpc::Status(grpc::StatusCode::UNAVAILABLE, "etcdserver: no leader");
    return std::nullopt;
  };
  EXPECT_TRUE(take().ok());
}

TEST_F(RegistrationTest, TheErrorOfAnAbsentEtcdNamesIt) {
  etcd_.before = [](const std::string&, int) -> Reply {
    return grpc::Status(grpc::StatusCode::UNAVAILABLE, "refused");
  };
  const auto registration = take(1, std::chrono::milliseconds(300));
  EXPECT_EQ(registration.status().code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_THAT(std::string(registration.status().message()), HasSubstr(etcd_.url() + ": refused (is it started"));
}

TEST_F(RegistrationTest, ALeaseThatHasEndedIsReplaced) {
  auto registration = *take();
  const int64_t lease = etcd_.lease(kKey);
  etcd_.end_lease(lease);
  EXPECT_TRUE(soon([&] { return etcd_.value(kKey) == "127.0.0.1"; }));
  EXPECT_NE(etcd_.lease(kKey), lease);
  registration.reset();
  EXPECT_EQ(etcd_.value(kKey), "") << "the new lease is the one that is revoked";
}

TEST_F(RegistrationTest, NothingIsWrittenWhileNothingChanges) {
  const auto registration = *take();
  const int renewals = etcd_.requests();
  EXPECT_TRUE(soon([&] { return etcd_.requests() > renewals + 4; }));
  EXPECT_EQ(etcd_.writes(), 1);
}

TEST_F(RegistrationTest, TheKeyOfAnotherTaskIsLeftAlone) {
  const auto registration = *take();
  etcd_.end_lease(etcd_.lease(kKey));
  etcd_.put(kKey, "10.0.0.9");
  registration->publish(4000);
  const int renewals = etcd_.requests();
  EXPECT_TRUE(soon([&] { return etcd_.requests() > renewals + 6; }));
  EXPECT_EQ(etcd_.value(kKey), "10.0.0.9");
  etcd_.remove(kKey);
  EXPECT_TRUE(soon([&] { return etcd_.value(kKey) == "127.0.0.1:4000"; })) << "free again";
}

TEST_F(RegistrationTest, ALookupKnowsTheLastAddressWhileEtcdIsAway) {
  const auto lookup = *PsLookup::open(where(), 2);
  etcd_.put("/gradrail/mnist/ps/1", "10.0.0.1");
  EXPECT_EQ(lookup->address(1).status().message(), "ps/1 is not registered at etcd://fake/mnist with its port");
  etcd_.put("/gradrail/mnist/ps/1", "10.0.0.1:4000");
  EXPECT_TRUE(soon([&] { return lookup->address(1).ok(); }));
  etcd_.before = [](const std::string&, int) -> Reply {
    return grpc::Status(grpc::StatusCode::UNAVAILABLE, "no leader");
  };
  std::this_thread::sleep_for(std::chrono::milliseconds(250));  // the former answer counts for 200 ms
  EXPECT_EQ(*lookup->address(1), "10.0.0.1:4000");
  EXPECT_EQ(lookup->address(0).status().code(), absl::StatusCode::kUnavailable);
}

TEST_F(RegistrationTest, AnObserverFindsAllPs) {
  etcd_.put("/gradrail/mnist/ps/1", "10.0.0.2:4000");
  etcd_.put("/gradrail/mnist/ps/x", "?");
  EXPECT_EQ(find_ps(where()).status().message(), "ps/0 is not registered at etcd://fake/mnist");
  etcd_.put("/gradrail/mnist/ps/0", "10.0.0.1:4000");
  EXPECT_THAT(*find_ps(where()), ElementsAre("10.0.0.1:4000", "10.0.0.2:4000"));
}

}  // namespace
}  // namespace gradrail::launch
