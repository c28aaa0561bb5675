#include "ps/replication/backup_sender.h"

#include <gmock/gmock.h>

#include <array>

#include "ps/protocol/control.pb.h"
#include "ps/protocol/data_message.h"
#include "tests/transport/loopback/context.h"

namespace gradrail::ps {
namespace {

using ::testing::HasSubstr;
using transport::Completion;

constexpr size_t kElements = 100;

/// A sender, and the backup's end of its connection. Both ends are polled by hand.
class BackupSenderTest : public ::testing::Test {
 protected:
  /// `workers`: number of workers in the state of each bucket. The slots have room for one.
  void connect(size_t workers) {
    const std::string address = backup_->listen("").value();
    sender_ =
        BackupSender::open(*primary_, *store_, budget_,
                           {.address = address,
                            .key = "key",
                            .layout = layout_,
                            .export_bucket = [workers](uint32_t, BucketState& state) { state.done.resize(workers); },
                            .deadline = Clock::now() + std::chrono::seconds(10)})
            .value();
    ASSERT_EQ(poll(*backup_), 1u);
    ASSERT_EQ(completions_[0].kind, Completion::Kind::connected);
    transport::Connection& connection = *completions_[0].connection;
    proto::ToWorker message;
    message.set_challenge("challenge");
    ASSERT_TRUE(send_message(connection, message).ok());
    deliver();
    ASSERT_FALSE(sender_->advance());
    ASSERT_EQ(poll(*backup_), 1u) << "JoinReplication";
    message.mutable_replication_welcome()->set_slots_key(slots_.region->key());
    ASSERT_TRUE(send_message(connection, message).ok());
    deliver();
    ASSERT_EQ(sender_->phase(), BackupSender::Phase::filling) << sender_->why();
  }

  size_t poll(transport::Context& context) { return context.poll(absl::MakeSpan(completions_)); }
  void deliver() {
    for (size_t i = poll(*primary_); i-- > 0;) sender_->on_message(completions_[i].message);
  }

  const BackupLayout layout_{ShardMap::cut(kElements, 1, 256).value(), 0, /*state_vectors=*/0, /*capacity=*/1};
  const std::unique_ptr<ParameterStore> store_ = *make_host_store({.kind = OptimizerKind::sgd}, kElements, nullptr);
  RegistrationBudget budget_;
  const std::unique_ptr<transport::Context> primary_ = *transport::loopback::open({});
  const std::unique_ptr<transport::Context> backup_ = *transport::loopback::open({});
  const transport::RegisteredMemory slots_ =
      *transport::make_registered(budget_, *backup_, "slots", layout_.bytes(), transport::Access::remote_write);
  std::array<Completion, 8> completions_;
  std::unique_ptr<BackupSender> sender_;
};

TEST_F(BackupSenderTest, EachBucketIsPut) {
  connect(1);
  EXPECT_FALSE(sender_->advance());
  ASSERT_EQ(poll(*backup_), 2u);
  EXPECT_TRUE(layout_.open(slots_.memory.data(), 0).ok());
}

/// The slot was put although its header and its table were not written.
TEST_F(BackupSenderTest, ASlotThatCannotBeSealedIsNotPut) {
  connect(2);
  EXPECT_FALSE(sender_->advance());
  EXPECT_EQ(sender_->phase(), BackupSender::Phase::lost);
  EXPECT_THAT(sender_->why(), HasSubstr("2 workers are more than the 1"));
  EXPECT_EQ(poll(*backup_), 0u);
}

}  // namespace
}  // namespace gradrail::ps
