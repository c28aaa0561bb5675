#include "tools/monitor/summaries.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "worker/data/tf_record.h"
#include "worker/summaries/event.pb.h"

namespace gradrail::tools {
namespace {

using ::testing::ElementsAre;
using ::testing::Pair;

/// Tags of each event, with its step.
std::vector<std::pair<int64_t, std::vector<std::string>>> events_in(const std::string& folder) {
  std::vector<std::pair<int64_t, std::vector<std::string>>> events;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    absl::StatusOr<worker::TfRecordReader> reader = worker::TfRecordReader::open(entry.path().string());
    EXPECT_TRUE(reader.ok()) << reader.status();
    std::string record;
    for (absl::StatusOr<bool> more = reader->next(record); more.ok() && *more; more = reader->next(record)) {
      worker::proto::Event event;
      EXPECT_TRUE(event.ParseFromString(record));
      std::vector<std::string> tags;
      if (event.session_log().status() == worker::proto::SessionLog::START) tags.emplace_back("START");
      for (const auto& value : event.summary().value()) {
        tags.push_back(value.tag());
        EXPECT_TRUE(value.has_simple_value()) << value.tag();
      }
      events.emplace_back(event.step(), tags);
    }
  }
  return events;
}

TEST(Summaries, AreWrittenEverySoManyBatchesAndAtTheEndOfAnEpoch) {
  const std::string folder = ::testing::TempDir() + "summaries_test";
  std::filesystem::remove_all(folder);
  const auto summaries = Summaries::create(folder, 3);
  ASSERT_TRUE(summaries.ok()) << summaries.status();
  // It has no classes, hence no accuracy of a batch.
  const auto linear = worker::make_workload({.model = "linear", .batch_size = 5});
  ASSERT_TRUE(linear.ok()) << linear.status();
  (*summaries)->graph(std::vector<worker::GraphNode>{{.name = "x", .op = "Placeholder", .inputs = {}, .shape = {5}}});
  for (size_t batch = 1; batch <= 4; ++batch) {
    (*summaries)
        ->step({.global_step = 10 + batch, .epoch = 1, .epoch_count = 1, .batch = batch, .batch_count = 4}, **linear,
               nullptr);
  }
  // Other workers may have made updates since the last batch of this one.
  (*summaries)->evaluated(17, 0.65f);
  EXPECT_THAT(
      events_in(folder),
      ElementsAre(Pair(0, ElementsAre()),  // the version
                  Pair(0, ElementsAre()),  // the graph
                  Pair(11, ElementsAre("START")), Pair(13, ElementsAre("cost", "examples/sec")),
                  Pair(14, ElementsAre("cost", "examples/sec", "global_step/sec")), Pair(17, ElementsAre("accuracy"))));
  std::filesystem::remove_all(folder);
}

/// TensorBoard showed the steps since the checkpoint twice.
TEST(Summaries, ARunThatGoesBackBeginsAgainAtThatStep) {
  const std::string folder = ::testing::TempDir() + "summaries_again_test";
  std::filesystem::remove_all(folder);
  const auto summaries = Summaries::create(folder, 2);
  ASSERT_TRUE(summaries.ok()) << summaries.status();
  const auto linear = worker::make_workload({.model = "linear", .batch_size = 5});
  ASSERT_TRUE(linear.ok()) << linear.status();
  size_t batch = 0;
  for (const uint64_t step : {1, 2, 3, 4, 3, 4, 4, 5}) {
    (*summaries)
        ->step({.global_step = step, .epoch = 1, .epoch_count = 1, .batch = ++batch, .batch_count = 100}, **linear,
               nullptr);
  }
  std::vector<std::pair<int64_t, std::string>> first_tags;
  for (const auto& [step, tags] : events_in(folder)) first_tags.emplace_back(step, tags.empty() ? "" : tags.front());
  EXPECT_THAT(first_tags, ElementsAre(Pair(0, ""), Pair(1, "START"), Pair(2, "cost"), Pair(4, "cost"), Pair(3, "START"),
                                      Pair(4, "cost"), Pair(5, "cost")));
  std::filesystem::remove_all(folder);
}

}  // namespace
}  // namespace gradrail::tools
