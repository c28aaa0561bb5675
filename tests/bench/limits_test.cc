#include "bench/report/limits.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/status.h"
#include "bench/driver/options.h"
#include "nlohmann/json.hpp"
#include "tests/ps/checkpoint/checkpoint_files.h"

namespace gradrail::bench {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

/// 1000 bytes in `p50_us`: 1 GB/s in 1 us.
Figure limited_row(const std::string& path, const std::string& what, uint64_t bytes, double p50_us) {
  Figure figure;
  figure.path = path;
  figure.what = what;
  figure.bytes = bytes;
  figure.times = {.count = 10, .p50_us = p50_us, .p99_us = 3 * p50_us};
  figure.alg_bytes = 1000;
  return figure;
}

std::vector<Figure> limited_rows() {
  return {limited_row("tcp", "", 4096, 2), limited_row("tcp", "", 65536, 4), limited_row("shm mapped", "", 65536, 1)};
}

std::string limits_file(const std::string& text) {
  // Tests of one program run at the same time, each in a process.
  static const ps::TemporaryFolder folder;
  const std::string path = folder.file("limits_test.json");
  std::ofstream(path) << text;
  return path;
}

absl::StatusOr<std::vector<Limit>> limits_from(const std::string& text, std::optional<double> tolerance = {}) {
  return read_limits(limits_file(text), tolerance, config_of(Options{}));
}

std::vector<std::string> violations_of(const std::string& text) {
  const absl::StatusOr<std::vector<Limit>> limits = limits_from(text);
  EXPECT_TRUE(limits.ok()) << limits.status();
  return violations(limits.value_or(std::vector<Limit>{}), limited_rows());
}

TEST(Limits, ARowThatKeepsItsBoundsIsNoViolation) {
  EXPECT_THAT(violations_of(R"([{"path": "tcp", "size": "64K", "min_GB/s": 0.25, "max_us": 4, "max_99_us": 12}])"),
              IsEmpty());
}

TEST(Limits, AViolationNamesRowFigureAndLimit) {
  EXPECT_THAT(violations_of(R"([{"path": "shm*", "max_us": 5},
                        {"path": "tcp", "size": 65536, "min_GB/s": 0.5, "max_us": 3, "max_99_us": 11}])"),
              ElementsAre("tcp at 65536 B: 0.250 GB/s, less than 0.5 (limits_test.json, limit 2)",
                          "tcp at 65536 B: 4.000 us, more than 3 (limits_test.json, limit 2)",
                          "tcp at 65536 B: 12.000 us (99 %), more than 11 (limits_test.json, limit 2)"));
}

TEST(Limits, WithoutASizeEachSizeIsBound) {
  EXPECT_EQ(violations_of(R"([{"path": "*", "max_us": 0.5}])").size(), 3);
  EXPECT_EQ(violations_of(R"([{"path": "tcp", "max_us": 0.5}])").size(), 2);
  EXPECT_EQ(violations_of(R"([{"path": "shm*", "max_us": 0.5}])").size(), 1);
}

TEST(Limits, ALimitWithoutARowIsAViolation) {
  for (const std::string selection : {R"("path": "tcp", "size": 8)", R"("path": "ofi*")", R"("path": "shm")",
                                      R"("path": "tcp", "what": "latency")"}) {
    SCOPED_TRACE(selection);
    const std::vector<std::string> lines = violations_of("[{" + selection + R"(, "max_us": 1e9}])");
    ASSERT_EQ(lines.size(), 1);
    EXPECT_THAT(lines[0], HasSubstr("no measured row for max_us 1e+09 (limits_test.json, limit 1); measured: shm"));
  }
}

TEST(Limits, APathThatFailedIsNamedWithItsReason) {
  std::vector<Figure> rows = limited_rows();
  rows.push_back(not_measured("ofi", 65536, "no device"));
  const Limit limit{.origin = "x", .path = "ofi verbs rxe0", .max_us = 5};
  EXPECT_THAT(violations({limit}, rows),
              ElementsAre("ofi verbs rxe0: no measured row for max_us 5 (x); ofi was not measured: no device"));
}

TEST(Limits, ALatencyHasNoBandwidthAndAForeignProgramNoTail) {
  std::vector<Figure> rows = {limited_row("tcp", "latency", 8, 2), limited_row("tcp", "bandwidth", 8, 2)};
  const Limit bandwidth{.origin = "x", .path = "tcp", .min_gb_per_s = 0.6};
  EXPECT_THAT(violations({bandwidth}, rows), ElementsAre("tcp bandwidth at 8 B: 0.500 GB/s, less than 0.6 (x)"));
  rows[0].times.p99_us = rows[1].times.p99_us = 0;
  EXPECT_EQ(violations({Limit{.origin = "x", .path = "tcp", .max_p99_us = 1e9}}, rows).size(), 1);
}

TEST(Limits, MinBwBindsTheLargestSizeOfEachPath) {
  const std::vector<Limit> limits = bandwidth_limits(limited_rows(), 0.4, "--min-bw");
  EXPECT_EQ(limits.size(), 2);
  EXPECT_THAT(violations(limits, limited_rows()), ElementsAre("tcp at 65536 B: 0.250 GB/s, less than 0.4 (--min-bw)"));
}

nlohmann::json recorded_run() {
  nlohmann::json results = nlohmann::json::array();
  for (const Figure& row : limited_rows()) results.push_back(to_json(row));
  results.push_back(to_json(not_measured("ucx", 65536, "no device")));
  return {{"machine", "x"}, {"config", config_of(Options{})}, {"results", results}};
}

TEST(Limits, ARecordedRunBoundsEachOfItsTimes) {
  const absl::StatusOr<std::vector<Limit>> limits = limits_from(recorded_run().dump(), 25);
  ASSERT_TRUE(limits.ok()) << limits.status();
  // A path without a figure is no limit.
  EXPECT_EQ(limits->size(), 3);
  EXPECT_THAT(violations(*limits, limited_rows()), IsEmpty());
  std::vector<Figure> slower = limited_rows();
  slower[0].times.p50_us = 2.5;
  slower[1].times.p50_us = 5.1;
  EXPECT_THAT(violations(*limits, slower),
              ElementsAre("tcp at 65536 B: 5.100 us, more than 5 (limits_test.json: 4.00 us and 25 %)"));
  slower.erase(slower.begin());
  EXPECT_EQ(violations(*limits, slower).size(), 2);
}

TEST(Limits, ARecordedRunHasTheSettingsOfThisRun) {
  nlohmann::json run = recorded_run();
  run["config"]["seed"] = 7;
  run["config"]["rounds"] = 50;
  EXPECT_TRUE(limits_from(run.dump(), 25).ok());
  run["config"]["workers"] = 4;
  EXPECT_THAT(message_of(limits_from(run.dump(), 25).status()), HasSubstr("(workers 4 / 0); use the same flags"));
}

TEST(Limits, FilesThatAreNoLimitsAreRefused) {
  for (const auto& [text, words] : std::vector<std::pair<std::string, std::string>>{
           {"[", "parse error at line 1, column 2"},
           {"[]", "has no limit"},
           {"{}", "neither a list of limits nor a run"},
           {"[3]", "limit 1: must be an object with path"},
           {R"([{"max_us": 1}])", "limit 1: \"path\" is missing"},
           {R"([{"path": "tcp"}])", "limit 1: has no bound"},
           {R"([{"path": "", "max_us": 1}])", "\"path\" must be a text"},
           {R"([{"path": "tcp", "what": 1, "max_us": 1}])", "\"what\" must be a text"},
           {R"([{"path": "tcp", "max_us": 1}, {"path": "tcp", "max_uss": 1}])",
            "limit 2: no field is called \"max_uss\""},
           {R"([{"path": "tcp", "max_us": "1"}])", "\"max_us\" must be a number above 0, and is \"1\""},
           {R"([{"path": "tcp", "min_GB/s": 0}])", "\"min_GB/s\" must be a number above 0"},
           {R"([{"path": "tcp", "max_99_us": -1}])", "\"max_99_us\" must be a number above 0"},
           {R"([{"path": "tcp", "size": "4Q", "max_us": 1}])", "\"size\" must be a number of bytes"},
           {R"([{"path": "tcp", "size": -4, "max_us": 1}])", "\"size\" must be a number of bytes"},
           {recorded_run().dump(), "needs --tolerance PERCENT"}}) {
    SCOPED_TRACE(text);
    const absl::StatusOr<std::vector<Limit>> limits = limits_from(text);
    EXPECT_TRUE(absl::IsInvalidArgument(limits.status())) << limits.status();
    EXPECT_THAT(message_of(limits.status()), HasSubstr(words));
    EXPECT_THAT(message_of(limits.status()), HasSubstr("limits_test.json"));
  }
  EXPECT_THAT(message_of(limits_from(R"([{"path": "tcp", "max_us": 1}])", 5).status()),
              HasSubstr("--tolerance is for a recorded run"));
  nlohmann::json damaged = recorded_run();
  damaged["results"][1].erase("path");
  EXPECT_THAT(message_of(limits_from(damaged.dump(), 5).status()), HasSubstr("result 2 is damaged"));
  damaged = recorded_run();
  damaged["results"][1]["nwrong"] = 5;
  EXPECT_THAT(message_of(limits_from(damaged.dump(), 5).status()), HasSubstr("has wrong results"));
  damaged["results"] = nlohmann::json::array();
  EXPECT_THAT(message_of(limits_from(damaged.dump(), 5).status()), HasSubstr("has no limit"));
  EXPECT_THAT(message_of(read_limits("/none", {}, config_of(Options{})).status()), HasSubstr("--limits /none"));
}

}  // namespace
}  // namespace gradrail::bench
