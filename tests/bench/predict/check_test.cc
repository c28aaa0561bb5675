#include "bench/predict/check.h"

#include <fstream>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "bench/predict/simulation.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tests/bench/predict/run_row.h"
#include "tests/ps/checkpoint/checkpoint_files.h"

namespace gradrail::bench::predict {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

/// A run of two workers and one ps, with these rows.
nlohmann::json run_of(const std::vector<nlohmann::json>& rows) {
  return {{"machine", "m"},
          {"results", rows},
          {"devices", {{{"task", "worker/0"}}, {{"task", "worker/1"}}, {{"task", "ps/0"}}}},
          {"config",
           {{"question", "exchange"},
            {"shards", 2},
            {"mode", "sync"},
            {"push", "int8"},
            {"return", "bf16"},
            {"optimizer", "sgd"},
            {"bucket_kib", 16}}}};
}

absl::StatusOr<bool> check(const nlohmann::json& run) {
  PredictFlags flags;
  const ps::TemporaryFolder folder;
  flags.check = folder.file("run.json");
  std::ofstream(flags.check) << run;
  ::testing::internal::CaptureStdout();
  const absl::StatusOr<bool> holds = run_check(flags);
  const std::string printed = ::testing::internal::GetCapturedStdout();
  EXPECT_EQ(printed.find("NOT WITHIN 10 %") != printed.npos, holds.ok() && !*holds) << printed;
  if (!holds.ok()) {
    EXPECT_THAT(std::string(holds.status().message()), StartsWith(flags.check + ": "));
  }
  return holds;
}

std::string error_of(const nlohmann::json& run) {
  const absl::Status status = check(run).status();
  EXPECT_TRUE(absl::IsDataLoss(status)) << status;
  return std::string(status.message());
}

TEST(PredictCheck, ThePredictionHasTheLoadOfTheRun) {
  PredictFlags flags;
  flags.cluster = {.workers = 2, .ps = 1, .shards = 2};
  flags.model = "65536";
  flags.bucket_kib = 16;
  flags.push = "int8";
  flags.returns = "bf16";
  const double us = simulate(*description_of(flags))->step_s_median * 1e6;
  for (const auto& [factor, holds] : {std::pair(1.0, true), {1.08, true}, {0.92, true}, {1.2, false}, {0.8, false}})
    EXPECT_EQ(*check(run_of({run_row("tcp", 65536, us * factor)})), holds) << factor;
  EXPECT_FALSE(*check(run_of({run_row("tcp", 65536, us), run_row("tcp", 131072, us)}))) << "each row must agree";
  EXPECT_TRUE(*check(run_of({run_row("tcp", 65536, us), run_row("shm mapped", 65536, 1)}))) << "rows over tcp only";
}

TEST(PredictCheck, OnlyRunsWithEqualStepsAreCompared) {
  nlohmann::json run = run_of({});
  for (const char* const suite : {"replay", "put", "paths", ""}) {
    run["config"]["question"] = suite;
    EXPECT_THAT(error_of(run), HasSubstr(std::string("a run of `bench ") + suite + "`; --check needs one of "));
  }
  for (const char* const suite : {"exchange", "incast"}) {
    run["config"]["question"] = suite;
    EXPECT_THAT(error_of(run), HasSubstr("has no row of `bench exchange` or `bench incast` over tcp"));
  }
}

TEST(PredictCheck, RunsOfAPartOfTheExchangeAreRefused) {
  nlohmann::json run = run_of({run_row("tcp", 65536, 100)});
  run["config"]["no_return"] = true;
  EXPECT_THAT(error_of(run), HasSubstr("a run with --no-return; --check predicts whole exchanges"));
  run = run_of({run_row("tcp", 65536, 100)});
  run["config"]["return"] = "delta";
  EXPECT_THAT(error_of(run), HasSubstr("a run with --return delta: its bytes depend on the values"));
  EXPECT_THAT(
      error_of(run_of({run_row("tcp 2 streams", 65536, 100)})),
      HasSubstr("its path is 'tcp 2 streams', and --check compares one plain connection: measure with --rails"));
}

TEST(PredictCheck, ARowWithoutAMeasurementDoesNotPass) {
  const auto with = [](const char* field, const nlohmann::json& value) {
    nlohmann::json row = run_row("tcp", 65536, 100);
    row[field] = value;
    return error_of(run_of({row}));
  };
  const std::string begin = "the row of 65536 bytes has no measurement to compare: ";
  EXPECT_THAT(with("failed", "worker/0: lost"), HasSubstr(begin + "worker/0: lost"));
  EXPECT_THAT(with("nwrong", 5), HasSubstr(begin + "it has wrong results"));
  EXPECT_THAT(error_of(run_of({run_row("tcp", 65536, 0)})), HasSubstr(begin + "its time is 0"));
}

}  // namespace
}  // namespace gradrail::bench::predict
