#include "ps/training.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "base/status.h"

namespace gradrail::ps {
namespace {

using ::testing::HasSubstr;

Training odd_training() {
  return {.mode = {.kind = ModeKind::sync, .worker_count = 3},
          .optimizer = {.kind = OptimizerKind::adam,
                        .learning_rate = 0.25f,
                        .momentum = 0.5f,
                        .beta1 = 0.75f,
                        .beta2 = 0.875f,
                        .epsilon = 0.125f},
          .bucket_bytes = 128};
}

TEST(TrainingOptions, SurviveTheWire) {
  const absl::StatusOr<Training> back = from_proto(to_proto(odd_training()));
  ASSERT_TRUE(back.ok()) << back.status();
  EXPECT_EQ(back->mode.kind, ModeKind::sync);
  EXPECT_EQ(back->mode.worker_count, 3u);
  EXPECT_EQ(back->optimizer, odd_training().optimizer);
  EXPECT_EQ(back->bucket_bytes, 128u);
  EXPECT_EQ(difference(odd_training(), *back), "");
}

TEST(TrainingOptions, EveryDifferenceIsNamedWithBothValues) {
  const auto differs = [](auto change) {
    Training theirs = odd_training();
    change(theirs);
    return difference(odd_training(), theirs);
  };
  EXPECT_EQ(differs([](Training& t) { t.mode.kind = ModeKind::async; }), "mode sync here, async there");
  EXPECT_EQ(differs([](Training& t) { t.mode.worker_count = 4; }), "number of workers 3 here, 4 there");
  EXPECT_EQ(differs([](Training& t) { t.optimizer.kind = OptimizerKind::sgd; }), "optimizer adam here, sgd there");
  EXPECT_EQ(differs([](Training& t) { t.optimizer.learning_rate = 0.5f; }), "learning_rate 0.25 here, 0.5 there");
  EXPECT_EQ(differs([](Training& t) { t.optimizer.momentum = 0.25f; }), "momentum 0.5 here, 0.25 there");
  EXPECT_EQ(differs([](Training& t) { t.optimizer.beta1 = 0.5f; }), "beta1 0.75 here, 0.5 there");
  EXPECT_EQ(differs([](Training& t) { t.optimizer.beta2 = 0.5f; }), "beta2 0.875 here, 0.5 there");
  EXPECT_EQ(differs([](Training& t) { t.optimizer.epsilon = 0.5f; }), "epsilon 0.125 here, 0.5 there");
  EXPECT_EQ(differs([](Training& t) { t.bucket_bytes = 64; }), "bucket_bytes 128 here, 64 there");
}

TEST(TrainingOptions, AsyncDoesNotCountWorkers) {
  Training ours = odd_training();
  ours.mode.kind = ModeKind::async;
  Training theirs = ours;
  theirs.mode.worker_count = 9;
  EXPECT_EQ(difference(ours, theirs), "");
}

TEST(TrainingOptions, UnknownNamesAreRefusedWithAList) {
  proto::Training message = to_proto(odd_training());
  message.set_mode("sometimes");
  EXPECT_THAT(std::string(message_of(from_proto(message).status())), HasSubstr("there are async, sync"));
  message = to_proto(odd_training());
  message.set_optimizer("magic");
  EXPECT_THAT(std::string(message_of(from_proto(message).status())), HasSubstr("adam"));
  EXPECT_TRUE(absl::IsInvalidArgument(from_proto(proto::Training()).status()));
}

TEST(TrainingOptions, SyncNeedsABoundedNumberOfWorkers) {
  proto::Training message = to_proto(odd_training());
  message.set_worker_count(0);
  EXPECT_TRUE(absl::IsInvalidArgument(from_proto(message).status()));
  message.set_worker_count(UINT32_MAX);
  EXPECT_TRUE(absl::IsInvalidArgument(from_proto(message).status())) << "a shard counts workers in memory";
  message.set_mode("async");
  EXPECT_TRUE(from_proto(message).ok());
}

TEST(TrainingOptions, NumbersThatAreNoneAreRefusedByName) {
  const auto refused = [](auto change) {
    proto::Training message = to_proto(odd_training());
    change(message);
    const absl::Status status = from_proto(message).status();
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
    return std::string(message_of(status));
  };
  const float nan = std::nanf("");
  EXPECT_THAT(refused([&](auto& m) { m.set_learning_rate(nan); }), HasSubstr("learning_rate nan: must be"));
  EXPECT_THAT(refused([](auto& m) { m.set_learning_rate(-1.0f); }), HasSubstr("learning_rate -1"));
  EXPECT_THAT(refused([](auto& m) { m.set_learning_rate(INFINITY); }), HasSubstr("learning_rate inf"));
  EXPECT_THAT(refused([](auto& m) { m.set_momentum(1.0f); }), HasSubstr("momentum 1: must be 0 or more and less"));
  EXPECT_THAT(refused([&](auto& m) { m.set_beta1(nan); }), HasSubstr("beta1"));
  EXPECT_THAT(refused([](auto& m) { m.set_beta2(1.5f); }), HasSubstr("beta2"));
  EXPECT_THAT(refused([](auto& m) { m.set_epsilon(-1e-8f); }), HasSubstr("epsilon"));
}

TEST(TrainingOptions, SchemaSurvivesTheWire) {
  const Schema schema = {{"w", {3, 4}}, {"scalar", {}}, {"b", {7}}};
  proto::JoinRequest request;
  to_proto(schema, request);
  EXPECT_EQ(schema_from_proto(request), schema);
}

TEST(TrainingOptions, ModesByName) {
  for (const ModeKind kind : {ModeKind::async, ModeKind::sync}) EXPECT_EQ(*parse_mode(mode_name(kind)), kind);
  EXPECT_FALSE(parse_mode("").ok());
  EXPECT_FALSE(parse_mode("Sync").ok());
}

}  // namespace
}  // namespace gradrail::ps
