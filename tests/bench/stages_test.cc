#include "bench/suites/stages.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "nlohmann/json.hpp"

namespace gradrail::bench {
namespace {

using Kind = Mark::Kind;
using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::Pair;

constexpr int64_t kMicro = 1000;

/// Marks of exchanges with moments in microseconds from their begin.
class Recording {
 public:
  Recording& exchange(uint32_t worker, uint64_t step, int64_t begun, int64_t done) {
    begun_ = begun;
    worker_ = worker;
    step_ = step;
    workers.push_back(mark(0, 0, 0, Kind::begun));
    workers.push_back(mark(0, 0, done, Kind::done));
    return *this;
  }
  /// One bucket's: pushed, posted, noticed, taken, applying, applied, answered.
  Recording& bucket(uint32_t shard, uint32_t bucket, std::array<int64_t, 7> at) {
    for (const auto& [kind, i] : {std::pair{Kind::pushed, 0}, {Kind::posted, 1}, {Kind::answered, 6}})
      workers.push_back(mark(shard, bucket, at[i], kind));
    for (const auto& [kind, i] :
         {std::pair{Kind::noticed, 2}, {Kind::taken, 3}, {Kind::applying, 4}, {Kind::applied, 5}})
      shards.push_back(mark(shard, bucket, at[i], kind));
    return *this;
  }
  Recording& copied(uint32_t shard, uint32_t bucket, int64_t at) {
    workers.push_back(mark(shard, bucket, at, Kind::copied));
    return *this;
  }

  std::vector<Mark> workers, shards;

 private:
  Mark mark(uint32_t shard, uint32_t bucket, int64_t at, Kind kind) const {
    return {.at_ns = (begun_ + at) * kMicro,
            .step = step_,
            .worker = worker_,
            .shard = shard,
            .bucket = bucket,
            .kind = kind};
  }
  int64_t begun_ = 0;
  uint64_t step_ = 0;
  uint32_t worker_ = 0;
};

TEST(Stages, AddUpToTheExchange) {
  Recording one;
  one.exchange(0, 1, 1000, 100).bucket(0, 0, {1, 10, 14, 15, 35, 60, 80});
  EXPECT_THAT(stages_of(one.workers, one.shards, false),
              ElementsAre(Pair("post", 10), Pair("wire", 4), Pair("arrival seen", 1), Pair("wait for peers", 20),
                          Pair("sum + optimizer", 25), Pair("return", 20), Pair("visible", 20)));
}

TEST(Stages, FollowTheBucketWithTheLastAnswer) {
  Recording one;
  one.exchange(0, 1, 1000, 100)
      .bucket(0, 0, {1, 10, 14, 15, 35, 60, 70})
      .bucket(1, 0, {12, 20, 30, 30, 30, 50, 90})
      .bucket(0, 1, {22, 25, 27, 30, 30, 50, 80});
  const auto stages = stages_of(one.workers, one.shards, false);
  EXPECT_EQ(stages[0], std::pair(std::string("post"), 20.0));
  EXPECT_EQ(stages[5], std::pair(std::string("return"), 40.0));
}

TEST(Stages, AGradientThatIsWaitedForAndACopyAreStagesOfTheirOwn) {
  Recording one;
  one.exchange(0, 1, 1000, 100).bucket(0, 0, {30, 50, 50, 50, 50, 60, 90}).copied(0, 0, 45);
  const auto stages = stages_of(one.workers, one.shards, true);
  EXPECT_EQ(stages[0], std::pair(std::string("backward"), 30.0));
  EXPECT_EQ(stages[1], std::pair(std::string("pack or copy"), 15.0));
  EXPECT_EQ(stages[2], std::pair(std::string("post"), 5.0));
}

TEST(Stages, APeerThatSeesAHeaderBeforeThePostReturnedEndsThePost) {
  Recording one;
  one.exchange(0, 1, 1000, 100).bucket(0, 0, {1, 20, 14, 15, 15, 60, 80});
  const auto stages = stages_of(one.workers, one.shards, false);
  EXPECT_EQ(stages[0], std::pair(std::string("post"), 14.0));
  EXPECT_EQ(stages[1], std::pair(std::string("wire"), 0.0));
}

TEST(Stages, AreThoseOfTheMiddleFifth) {
  Recording ten;
  for (int64_t i = 0; i < 10; ++i)  // the return takes 10, 20, … 100
    ten.exchange(0, 1 + i, 1000 * (i + 1), 50 + 10 * (i + 1)).bucket(0, 0, {0, 10, 20, 20, 30, 50, 50 + 10 * (i + 1)});
  EXPECT_EQ(stages_of(ten.workers, ten.shards, false)[5], std::pair(std::string("return"), 55.0));  // 50 and 60
}

TEST(Stages, WorkersAndStepsAreKeptApart) {
  Recording two;
  two.exchange(0, 7, 1000, 100).bucket(0, 0, {0, 10, 20, 20, 30, 50, 90});
  two.exchange(1, 7, 2000, 100).bucket(0, 0, {0, 10, 20, 20, 30, 50, 90});
  EXPECT_EQ(stages_of(two.workers, two.shards, false)[0], std::pair(std::string("post"), 10.0));
}

TEST(Stages, ExchangesWithoutTheOtherEndDoNotCount) {
  Recording lost;
  lost.exchange(0, 1, 1000, 100).bucket(0, 0, {0, 10, 20, 20, 30, 50, 90});
  EXPECT_THAT(stages_of(lost.workers, {}, false), IsEmpty());
  EXPECT_THAT(stages_of({}, lost.shards, false), IsEmpty());
  lost.exchange(0, 2, 2000, 100).bucket(0, 0, {0, 20, 30, 30, 30, 50, 90});
  lost.shards.erase(lost.shards.begin(), lost.shards.begin() + 2);  // the ring has overtaken the first
  EXPECT_EQ(stages_of(lost.workers, lost.shards, false)[0], std::pair(std::string("post"), 20.0));
}

TEST(Stages, MarksSurviveTheirWayBetweenProcesses) {
  Recording one;
  one.exchange(3, 1'000'000'000'000, 1000, 100).bucket(2, 5, {1, 10, 14, 15, 35, 60, 80});
  const std::vector<Mark> back = marks_from(nlohmann::json::parse(to_json(one.workers).dump()));
  EXPECT_EQ(stages_of(back, one.shards, false), stages_of(one.workers, one.shards, false));
  EXPECT_FALSE(stages_of(back, one.shards, false).empty());
}

}  // namespace
}  // namespace gradrail::bench
