#include "launch/etcd/lease_keeper.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <thread>

#include "tests/launch/etcd/fake_etcd.h"

namespace gradrail::launch {
namespace {

const std::string kKey = "/gradrail/mnist/ps/0";

class LeaseKeeperTest : public ::testing::Test {
 protected:
  void SetUp() override {
    lease_ = *etcd_.client()->grant(kLeaseSeconds);
    etcd_.put(kKey, to_text(record_), lease_);
    keeper_ = std::make_unique<LeaseKeeper>(etcd_.client(), kKey, lease_, record_);
    ASSERT_TRUE(keeper_->start().ok());
  }
  template <typename Condition>
  bool soon(Condition condition) {
    const char* const timeout = std::getenv("GRADRAIL_PATIENCE");
    const TimePoint deadline = Clock::now() + std::chrono::seconds(10 * (timeout ? std::max(1, atoi(timeout)) : 1));
    while (!condition() && Clock::now() < deadline) std::this_thread::sleep_for(std::chrono::milliseconds(10));
    return condition();
  }
  bool says(const std::string& address) {
    const std::optional<TaskRecord> record = task_record_from(etcd_.value(kKey));
    return record && record->address == address && record->id == record_.id;
  }

  FakeEtcd etcd_;
  const TaskRecord record_{.address = "10.0.0.7", .id = "us", .sizes = {.ps = 1, .workers = 2}};
  int64_t lease_ = 0;
  std::unique_ptr<LeaseKeeper> keeper_;
};

TEST_F(LeaseKeeperTest, AnAddressIsSaidAtOnceUnderTheSameLease) {
  keeper_->publish_address("10.0.0.7:4000");
  EXPECT_TRUE(soon([&] { return says("10.0.0.7:4000"); }));
  EXPECT_EQ(etcd_.lease(kKey), lease_);
}

TEST_F(LeaseKeeperTest, TheEndTakesTheKeyAway) {
  keeper_.reset();
  EXPECT_EQ(etcd_.value(kKey), "");
}

TEST_F(LeaseKeeperTest, ALeaseThatIsGoneIsReplaced) {
  etcd_.end_lease(lease_);
  EXPECT_TRUE(soon([&] { return says("10.0.0.7"); }));
  EXPECT_NE(etcd_.lease(kKey), lease_);
  keeper_.reset();
  EXPECT_EQ(etcd_.value(kKey), "") << "the new lease is the one that is revoked";
}

TEST_F(LeaseKeeperTest, NothingIsWrittenWhileAllIsWell) {
  const int before = etcd_.writes();
  std::this_thread::sleep_for(std::chrono::seconds(kLeaseSeconds));
  EXPECT_EQ(etcd_.writes(), before);
}

TEST_F(LeaseKeeperTest, ThePlaceOfAnotherTaskIsLeftAlone) {
  const std::string other = to_text({.address = "10.0.0.9", .id = "them", .sizes = record_.sizes});
  etcd_.end_lease(lease_);
  etcd_.put(kKey, other);
  keeper_->publish_address("10.0.0.7:4000");
  std::this_thread::sleep_for(std::chrono::seconds(2));
  EXPECT_EQ(etcd_.value(kKey), other);
  etcd_.remove(kKey);
  EXPECT_TRUE(soon([&] { return says("10.0.0.7:4000"); })) << "free again";
}

}  // namespace
}  // namespace gradrail::launch
