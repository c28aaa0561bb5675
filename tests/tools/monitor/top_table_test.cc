#include "tools/monitor/top_table.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace gradrail::tools {
namespace {

using ::testing::ContainsRegex;
using ::testing::EndsWith;
using ::testing::MatchesRegex;
using ::testing::Not;

ps::proto::StatsReply::Worker& add_worker(PsAnswer& answer, uint32_t index, double pace) {
  ps::proto::StatsReply::Worker& worker = *answer.stats.add_workers();
  worker.set_task_index(index);
  worker.set_name("worker " + std::to_string(index));
  worker.mutable_report()->set_exchanges_per_s(pace);
  worker.mutable_report()->set_path("tcp");
  return worker;
}

TEST(TopTable, APsThatDoesNotAnswerKeepsItsRow) {
  const std::vector<std::string> lines =
      top_table({{.address = "a:1", .unreachable = "Connection refused"}, {.address = "b:2"}}, {});
  ASSERT_EQ(lines.size(), 3u);
  EXPECT_THAT(lines[1], MatchesRegex("ps/0 +- .* a:1 +Connection refused"));
  EXPECT_THAT(lines[2], MatchesRegex("ps/1 +0 +- .* b:2 +0 live, 0 shards"));
}

TEST(TopTable, ThePaceOfAPsIsThatBetweenTwoAnswers) {
  const TimePoint now = Clock::now();
  PsAnswer before{.address = "a:1", .at = now - std::chrono::seconds(2)}, answer{.address = "a:1", .at = now};
  before.stats.set_global_step(100);
  answer.stats.set_global_step(350);
  EXPECT_THAT(top_table({answer}, {before})[1], MatchesRegex("ps/0 +350 +125/s .*"));
  answer.stats.set_global_step(50);  // started again
  EXPECT_THAT(top_table({answer}, {before})[1], MatchesRegex("ps/0 +50 +- .*"));
}

TEST(TopTable, NamesSlowAwaitedSilentAndLostWorkers) {
  PsAnswer answer{.address = "a:1"};
  add_worker(answer, 0, 100);
  add_worker(answer, 1, 49);
  add_worker(answer, 2, 90).mutable_report()->set_under_way_s(4.2);
  add_worker(answer, 3, 120).set_age_s(7);
  add_worker(answer, 4, 1).set_ended("lost: its control connection ended");
  add_worker(answer, 5, 100);
  answer.stats.add_waiting_for("worker 5");
  answer.stats.set_formats("push int4, return delta");
  answer.stats.set_grace_window_s(0.0125);
  const std::vector<std::string> lines = top_table({answer}, {});
  ASSERT_EQ(lines.size(), 8u);
  EXPECT_THAT(lines[1], EndsWith(", push int4, return delta, grace 12.5 ms, waits for worker 5"));
  EXPECT_THAT(lines[2], MatchesRegex("worker/0 +0 +100/s .* tcp"));
  EXPECT_THAT(lines[3], EndsWith("tcp                      slow"));
  EXPECT_THAT(lines[4], EndsWith("in an exchange for 4.2 s"));
  EXPECT_THAT(lines[5], EndsWith("silent for 7 s"));
  EXPECT_THAT(lines[6], EndsWith("lost: its control connection ended"));
  EXPECT_THAT(lines[7], EndsWith("awaited"));
}

TEST(TopTable, NamesNanInTheParameters) {
  PsAnswer answer{.address = "a:1"};
  answer.stats.set_non_finite("NaN in tensor w, element 3, step 7, of worker 1");
  EXPECT_THAT(top_table({answer}, {})[1], EndsWith("0 live, 0 shards")) << "they are finite again";
  answer.stats.set_non_finite_buckets(2);
  EXPECT_THAT(top_table({answer}, {})[1],
              EndsWith("0 shards, 2 buckets not finite (NaN in tensor w, element 3, step 7, of worker 1)"));
}

TEST(TopTable, TheNewestReportCountsAndASingleWorkerIsNotSlow) {
  PsAnswer first{.address = "a:1"}, second{.address = "b:2"};
  add_worker(first, 0, 5).set_age_s(0.4);
  add_worker(second, 0, 7).set_age_s(0.1);
  const std::vector<std::string> lines = top_table({first, second}, {});
  ASSERT_EQ(lines.size(), 4u);
  EXPECT_THAT(lines[3], ContainsRegex("7\\.0/s"));
  EXPECT_THAT(lines[3], Not(EndsWith("slow")));
}

}  // namespace
}  // namespace gradrail::tools
