#include "bench/report/report.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "nlohmann/json.hpp"

namespace gradrail::bench {
namespace {

std::string json_of(const Options& options) {
  testing::internal::CaptureStdout();
  Report report(options, "a run");
  report.add(not_measured("shm", 4096, "a test"));
  report.finish(false);
  return testing::internal::GetCapturedStdout();
}

TEST(Report, ArgumentsWithInvalidUtf8DoNotLoseTheRun) {
  Options options;
  options.format = "json";
  options.arguments = {"bench", "-J", "x\xff.json"};
  const nlohmann::json run = nlohmann::json::parse(json_of(options), nullptr, false);
  ASSERT_FALSE(run.is_discarded());
  EXPECT_EQ(run["arguments"][2], "x\xef\xbf\xbd.json");
  EXPECT_EQ(run["results"].size(), 1u);
}

TEST(Report, HasTheFolderOfPlugins) {
  Options options;
  options.format = "json";
  options.plugin_dir = "/plugins";
  EXPECT_EQ(nlohmann::json::parse(json_of(options))["config"]["plugin_dir"], "/plugins");
}

}  // namespace
}  // namespace gradrail::bench
