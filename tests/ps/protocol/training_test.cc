#include "ps/protocol/training.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "base/status.h"
#include "fmt/format.h"
#include "ps/protocol/control.pb.h"

namespace gradrail::ps {
namespace {

using ::testing::HasSubstr;

Training odd_training() {
  return {.mode = {.kind = ModeKind::quorum, .worker_count = 3, .bound = 2, .drops_late = true},
          .optimizer = {.kind = OptimizerKind::adam,
                        .learning_rate = 0.25f,
                        .momentum = 0.5f,
                        .beta1 = 0.75f,
                        .beta2 = 0.875f,
                        .epsilon = 0.125f},
          .push = PushFormat::bf16,
          .bucket_bytes = 128};
}

TEST(TrainingOptions, RoundTrip) {
  const absl::StatusOr<Training> back = from_proto(to_proto(odd_training()));
  ASSERT_TRUE(back.ok()) << back.status();
  EXPECT_EQ(back->mode.kind, ModeKind::quorum);
  EXPECT_TRUE(back->mode.drops_late);
  EXPECT_EQ(back->mode.worker_count, 3u);
  EXPECT_EQ(back->mode.bound, 2u);
  EXPECT_EQ(back->optimizer, odd_training().optimizer);
  EXPECT_EQ(back->push, PushFormat::bf16);
  EXPECT_EQ(back->bucket_bytes, 128u);
  EXPECT_EQ(difference(odd_training(), *back), "");
}

TEST(TrainingOptions, EveryDifferenceIsNamedWithBothValues) {
  const auto differs = [](auto change) {
    Training theirs = odd_training();
    change(theirs);
    return difference(odd_training(), theirs);
  };
  EXPECT_EQ(differs([](Training& t) { t.mode.kind = ModeKind::async; }), "mode quorum:2,late=drop here, async there");
  EXPECT_EQ(differs([](Training& t) { t.mode.bound = 1; }), "mode quorum:2,late=drop here, quorum:1,late=drop there");
  EXPECT_EQ(differs([](Training& t) { t.mode.drops_late = false; }), "mode quorum:2,late=drop here, quorum:2 there");
  EXPECT_EQ(differs([](Training& t) { t.agreement = "--epochs 3"; }), "options  here, --epochs 3 there");
  EXPECT_EQ(differs([](Training& t) { t.mode.worker_count = 4; }), "") << "a cluster may grow";
  EXPECT_EQ(differs([](Training& t) { t.optimizer.kind = OptimizerKind::sgd; }), "optimizer adam here, sgd there");
  EXPECT_EQ(differs([](Training& t) { t.optimizer.learning_rate = 0.5f; }), "learning_rate 0.25 here, 0.5 there");
  EXPECT_EQ(differs([](Training& t) { t.optimizer.momentum = 0.25f; }), "momentum 0.5 here, 0.25 there");
  EXPECT_EQ(differs([](Training& t) { t.optimizer.beta1 = 0.5f; }), "beta1 0.75 here, 0.5 there");
  EXPECT_EQ(differs([](Training& t) { t.optimizer.beta2 = 0.5f; }), "beta2 0.875 here, 0.5 there");
  EXPECT_EQ(differs([](Training& t) { t.optimizer.epsilon = 0.5f; }), "epsilon 0.125 here, 0.5 there");
  EXPECT_EQ(differs([](Training& t) { t.optimizer.momentum_every = 2; }), "momentum_every 0 here, 2 there");
  EXPECT_EQ(differs([](Training& t) { t.push = PushFormat::fp32; }), "push bf16 here, fp32 there");
  EXPECT_EQ(differs([](Training& t) { t.push = PushFormat(PushFormat::topk, 15); }), "push bf16 here, topk:1.5 there");
  EXPECT_EQ(differs([](Training& t) { t.bucket_bytes = 64; }), "bucket_bytes 128 here, 64 there");
}

TEST(TrainingOptions, TheMomentumIsUpdatedAfterAGradientOfEachWorker) {
  const auto every = [](ModeKind mode, uint32_t workers, uint32_t given) {
    return optimizer_of_run({.mode = {.kind = mode, .worker_count = workers, .bound = 1},
                             .optimizer = {.kind = OptimizerKind::delayed_nesterov, .momentum_every = given}})
        .momentum_every;
  };
  EXPECT_EQ(every(ModeKind::async, 4, 0), 4u);
  EXPECT_EQ(every(ModeKind::ssp, 4, 0), 4u);
  EXPECT_EQ(every(ModeKind::async, 0, 0), 1u) << "async permits an unknown number of workers";
  for (const ModeKind mode : {ModeKind::sync, ModeKind::quorum}) EXPECT_EQ(every(mode, 4, 0), 1u);
  EXPECT_EQ(every(ModeKind::async, 4, 7), 7u);
  EXPECT_EQ(every(ModeKind::sync, 4, 7), 7u);
  proto::Training message = to_proto({.optimizer = {.kind = OptimizerKind::delayed_nesterov, .momentum_every = 5}});
  EXPECT_EQ(from_proto(message)->optimizer.momentum_every, 5u);
  message.set_optimizer("nesterov");
  EXPECT_EQ(message_of(from_proto(message).status()),
            "momentum_every 5: the optimizer nesterov has none; delayed_nesterov has it");
}

TEST(TrainingOptions, UnknownNamesAreRefusedWithAList) {
  proto::Training message = to_proto(odd_training());
  message.set_mode("sometimes");
  EXPECT_THAT(std::string(message_of(from_proto(message).status())), HasSubstr("there are async, sync"));
  message = to_proto(odd_training());
  message.set_optimizer("magic");
  EXPECT_THAT(std::string(message_of(from_proto(message).status())), HasSubstr("adam"));
  message = to_proto(odd_training());
  message.set_push("fp8");
  EXPECT_THAT(std::string(message_of(from_proto(message).status())), HasSubstr("there are fp32, bf16"));
  EXPECT_TRUE(absl::IsInvalidArgument(from_proto(proto::Training()).status()));
}

TEST(TrainingOptions, TopkHasAPercentage) {
  for (const auto& [text, thousandths] :
       {std::pair("topk:1", 10), std::pair("topk:0.1", 1), std::pair("topk:12.5", 125), std::pair("topk:25", 250)}) {
    const absl::StatusOr<PushFormat> format = parse_push_format(text);
    ASSERT_TRUE(format.ok()) << format.status();
    EXPECT_EQ(*format, PushFormat(PushFormat::topk, static_cast<uint16_t>(thousandths)));
    EXPECT_EQ(push_format_name(*format), text);
    Training training = odd_training();
    training.push = *format;
    EXPECT_EQ(from_proto(to_proto(training))->push, *format);
    Training other = training;
    other.push.thousandths += 1;
    EXPECT_THAT(difference(training, other), HasSubstr(fmt::format("push {} here, topk:", text)));
  }
  EXPECT_EQ(push_format_name(parse_push_format("topk:3.0").value()), "topk:3");
  for (const char* text :
       {"topk", "topk:", "topk:0", "topk:0.0", "topk:25.1", "topk:50", "topk:x", "topk:1x", "topk:-1", "topk:0.25",
        "topk:1.", "topk:.5", "topk:1.x", "topk:6554", "topk:65536", "topk: 1", "topk:1:1"}) {
    EXPECT_THAT(
        std::string(message_of(parse_push_format(text).status())),
        HasSubstr(fmt::format("push format '{}': topk needs a percentage from 0.1 to 25 with one decimal", text)));
  }
  EXPECT_THAT(std::string(message_of(parse_push_format("top:1").status())), HasSubstr("int4, topk:P"));
}

TEST(TrainingOptions, WaitingNeedsABoundedNumberOfWorkers) {
  proto::Training message = to_proto(odd_training());
  message.set_worker_count(0);
  EXPECT_TRUE(absl::IsInvalidArgument(from_proto(message).status()));
  message.set_worker_count(UINT32_MAX);
  EXPECT_TRUE(absl::IsInvalidArgument(from_proto(message).status())) << "a shard counts workers in memory";
  message.set_worker_count(1);
  EXPECT_TRUE(absl::IsInvalidArgument(from_proto(message).status())) << "a step would wait for two of one";
  message.set_worker_count(0);
  message.set_mode("async");
  EXPECT_TRUE(from_proto(message).ok());
}

TEST(TrainingOptions, InvalidNumbersAreRefusedByName) {
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

TEST(TrainingOptions, SchemaRoundTrip) {
  const Schema schema = {{"w", {3, 4}}, {"scalar", {}}, {"b", {7}}};
  proto::JoinRequest request;
  to_proto(schema, request);
  EXPECT_EQ(schema_from_proto(request), schema);
}

TEST(TrainingOptions, ModesByName) {
  for (const char* text : {"async", "sync", "ssp:0", "ssp:17", "quorum:2", "quorum:2,grace=0.5", "quorum:2,late=drop",
                           "quorum:1,grace=auto,late=drop", "quorum:1,grace=3600", "quorum:3,grace=auto"}) {
    const absl::StatusOr<Mode> mode = parse_mode(text);
    ASSERT_TRUE(mode.ok()) << mode.status();
    EXPECT_EQ(mode_text(*mode), text);
  }
  for (const char* text : {"", "Sync", "ssp", "ssp:", "ssp:x", "ssp:-1", "ssp:1 ", "backup:1", "quorum:99999999999",
                           "quorum:0", "quorum", "sync:1"})
    EXPECT_FALSE(parse_mode(text).ok()) << text;
}

TEST(TrainingOptions, AGraceHasALimitAndBelongsToAQuorum) {
  EXPECT_EQ(mode_text(*parse_mode("quorum:2,grace=0")), "quorum:2");
  EXPECT_EQ(mode_text(*parse_mode("quorum:2,grace=-0")), "quorum:2");
  EXPECT_EQ(mode_text(*parse_mode("quorum:2,grace=0.50")), "quorum:2,grace=0.5");
  EXPECT_EQ(parse_mode("quorum:2,grace=0.25")->grace.seconds, 0.25);
  EXPECT_TRUE(parse_mode("quorum:2,grace=auto")->grace.is_auto);
  EXPECT_EQ(mode_text(*parse_mode("quorum:2,late=drop,grace=1")), "quorum:2,grace=1,late=drop");
  const auto refused = [](std::string_view text) {
    const absl::Status status = parse_mode(text).status();
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << text;
    return std::string(message_of(status));
  };
  for (const char* text : {"-1", "nan", "inf", "3600.5", "", "0.5s", "Auto", " 1", "1e99"})
    EXPECT_THAT(refused(fmt::format("quorum:2,grace={}", text)), HasSubstr("from 0 to 3600, or auto")) << text;
  for (const char* text : {"", "wait=1", "grace", "Grace=1", " grace=1", "late", "late=keep", "late=drop,late=drop",
                           "grace=1,grace=2", "late=drop,"})
    EXPECT_THAT(refused(fmt::format("quorum:2,{}", text)),
                HasSubstr("the options of quorum:K are grace=SECONDS or grace=auto, and late=drop"));
  for (const char* text : {"ssp:1,grace=1", "ssp:1,late=drop", "sync,grace=1", "async,grace=auto"})
    EXPECT_THAT(refused(text), HasSubstr("only quorum:K has options, such as quorum:2,grace=0.5"));
  for (const char* text : {"quorum,grace=1", "quorum:,grace=1"})
    EXPECT_THAT(refused(text), HasSubstr("quorum needs a number from 1"));
}

}  // namespace
}  // namespace gradrail::ps
