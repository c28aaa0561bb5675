#include "bench/predict/check.h"

#include <fstream>
#include <string>

#include "absl/status/status.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tests/ps/checkpoint/checkpoint_files.h"

namespace gradrail::bench::predict {
namespace {

using ::testing::HasSubstr;

/// The error of a run without rows.
std::string check_error(const std::string& suite) {
  const nlohmann::json run = {{"machine", "m"},
                              {"results", nlohmann::json::array()},
                              {"devices", {{{"task", "worker/0"}}, {{"task", "ps/0"}}}},
                              {"config",
                               {{"question", suite},
                                {"shards", 1},
                                {"mode", "sync"},
                                {"push", "fp32"},
                                {"return", "fp32"},
                                {"optimizer", "sgd"},
                                {"bucket_kib", 256}}}};
  PredictFlags flags;
  const ps::TemporaryFolder folder;
  flags.check = folder.file("run.json");
  std::ofstream(flags.check) << run;
  const absl::Status status = run_check(flags).status();
  EXPECT_TRUE(absl::IsDataLoss(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr(flags.check + ": "));
  return std::string(status.message());
}

TEST(PredictCheck, OnlyRunsWithEqualStepsAreCompared) {
  for (const char* const suite : {"replay", "put", "paths", ""}) {
    EXPECT_THAT(check_error(suite), HasSubstr(std::string("a run of `bench ") + suite + "`; --check needs one of "));
  }
  for (const char* const suite : {"exchange", "incast"})
    EXPECT_THAT(check_error(suite), HasSubstr("has no row of `bench exchange` or `bench incast` over tcp"));
}

}  // namespace
}  // namespace gradrail::bench::predict
