// Flags and recorded costs.
#include "bench/predict/options.h"

#include <algorithm>
#include <fstream>
#include <string>
#include <vector>

#include "CLI/CLI.hpp"
#include "bench/predict/cost_file.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tests/bench/predict/run_row.h"
#include "tests/ps/checkpoint/checkpoint_files.h"

namespace gradrail::bench::predict {
namespace {

using ::testing::HasSubstr;

std::string error_of(const absl::Status& status) { return std::string(status.message()); }

TEST(PredictOptions, MistakesNameTheirFlag) {
  const auto error = [](auto change) {
    PredictFlags flags;
    change(flags);
    return error_of(description_of(flags).status());
  };
  EXPECT_THAT(error([](PredictFlags& f) { f.model = "10X"; }), HasSubstr("--model 10X: is no number of bytes"));
  EXPECT_THAT(error([](PredictFlags& f) { f.model = "10"; }), HasSubstr("multiple of 4"));
  EXPECT_THAT(error([](PredictFlags& f) { f.compute_sigma = 0.5; }),
              HasSubstr("--compute_sigma 0.5: has no effect without a compute time; give --compute_ms"));
  EXPECT_THAT(error([](PredictFlags& f) { f.mode = "quorum:5"; }), HasSubstr("quorum:5"));
  EXPECT_THAT(error([](PredictFlags& f) { f.mode = "quorum:2,grace=auto"; }), HasSubstr("grace=auto"));
  EXPECT_THAT(error([](PredictFlags& f) { f.failures.mtbf_hours = 1e-6; }), HasSubstr("--mtbf 1e-06"));
  EXPECT_THAT(error([](PredictFlags& f) { f.cluster.workers = 65536, f.model = "64G"; }), HasSubstr("--bucket_kib"));
  EXPECT_THAT(error([](PredictFlags& f) { f.costs = {"missing.json"}; }), HasSubstr("missing.json"));
}

/// The error of `gradrail predict` with these words; "": none.
std::string parse_error(std::vector<std::string> words) {
  CLI::App app;
  PredictFlags flags;
  add_predict_flags(app, flags);
  std::reverse(words.begin(), words.end());
  try {
    app.parse(words);
  } catch (const CLI::ParseError& error) {
    return error.what();
  }
  return "";
}

TEST(PredictOptions, FlagsWithoutAnEffectAreRefused) {
  EXPECT_THAT(parse_error({"--restart_s", "3"}), HasSubstr("--restart_s requires --mtbf"));
  EXPECT_EQ(parse_error({"--restart-s", "3", "--mtbf", "50"}), "");
  EXPECT_EQ(parse_error({"--check", "run.json", "--nic", "25", "--rtt", "40", "--costs", "apply.json"}), "");
  for (const char* const flag :
       {"--workers=4", "--ps=1", "--shards=2", "--model=1M", "--mode=async", "--push=int8", "--return=bf16",
        "--optimizer=adam", "--bucket_kib=64", "--compute_ms=5", "--compute_sigma=1", "--mtbf=50"})
    EXPECT_THAT(parse_error({"--check", "run.json", flag}), HasSubstr("excludes")) << flag;
}

TEST(PredictOptions, ValuesOutsideTheirRangeAreRefused) {
  for (const char* const flag : {"--workers=0", "--ps=70000", "--shards=65", "--nic=0", "--nic=nan", "--rtt=-1",
                                 "--mode=backup:1", "--push=fp16", "--return=delta", "--transport=shm", "--mtbf=0"})
    EXPECT_THAT(parse_error({flag}), HasSubstr(std::string(flag).substr(0, std::string(flag).find('=')))) << flag;
}

TEST(PredictOptions, ASaveReadsParametersAndState) {
  PredictFlags flags;
  flags.cluster.ps = 2;
  const auto cost = [&] { return description_of(flags)->failures.save_cost_s; };
  const double sgd = cost();
  EXPECT_NEAR(sgd, (128 << 20) * Costs{}.gradient_ns_per_byte * 1e-9, 1e-9);
  flags.optimizer = "adam";
  EXPECT_NEAR(cost(), 3 * sgd, 1e-9);
}

/// A recorded run with these rows.
std::string write_run(const std::string& path, const std::vector<nlohmann::json>& rows) {
  std::ofstream(path) << nlohmann::json{{"config", nlohmann::json::object()}, {"machine", "m"}, {"results", rows}};
  return path;
}

absl::Status read(const std::vector<nlohmann::json>& rows, Costs& costs) {
  const ps::TemporaryFolder folder;
  const std::string path = write_run(folder.file("predict_costs.json"), rows);
  return read_costs(path, "adam", PushFormat::int8, costs);
}

TEST(PredictCosts, ApplyAndPackingOfTheLargestSize) {
  Costs costs;
  const absl::Status status =
      read({run_row("adam, 1 gradient int8, 0 targets", 1000, 9),
            run_row("adam, 1 gradient int8, 0 targets", 1'000'000, 500),
            run_row("sgd, 1 gradient int8, 0 targets", 1'000'000, 100),
            run_row("sgd, 4 gradients int8, 0 targets", 1'000'000, 400), run_row("pack int8", 1'000'000, 120)},
           costs);
  ASSERT_TRUE(status.ok()) << status;
  EXPECT_NEAR(costs.gradient_ns_per_byte, 0.1, 1e-9);
  EXPECT_NEAR(costs.apply_ns_per_byte, 0.4, 1e-9);
  EXPECT_NEAR(costs.pack_ns_per_byte, 0.12, 1e-9);
  EXPECT_EQ(costs.message_us, Costs{}.message_us);
}

TEST(PredictCosts, MessagesOfAnExchange) {
  Costs costs;
  ASSERT_TRUE(read({run_row("tcp", 64, 12), run_row("tcp", 1'000'064, 212), run_row("shm mapped", 64, 1)}, costs).ok());
  EXPECT_NEAR(costs.message_us, 3, 1e-9);
  EXPECT_NEAR(costs.send_ns_per_byte, 0.1, 1e-9);
  EXPECT_NEAR(costs.receive_ns_per_byte, 0.1, 1e-9);
}

TEST(PredictCosts, TimesThatNoMachineHasAreRefused) {
  Costs costs;
  EXPECT_THAT(error_of(read({run_row("tcp", 64, 15), run_row("tcp", 128, 14)}, costs)),
              HasSubstr("64 bytes over tcp took 15.00 us and 128 bytes 14.00 us, so that a byte has no cost"));
  for (const double us : {-5.0, 1e300})
    EXPECT_THAT(error_of(read({run_row("tcp", 64, 12), run_row("tcp", 128, us)}, costs)),
                HasSubstr("result 2 is damaged"));
  EXPECT_THAT(error_of(read({run_row("tcp", 64, 0), run_row("tcp", 128, 0)}, costs)), HasSubstr("neither rows of"));
  EXPECT_EQ(costs.message_us, Costs{}.message_us);
}

TEST(PredictCosts, AReplacedSourceIsNotNamed) {
  Costs costs = recorded_costs(PushFormat::fp32);
  ASSERT_TRUE(read({run_row("tcp", 64, 12), run_row("tcp", 1'000'064, 212)}, costs).ok());
  EXPECT_EQ(std::ranges::count_if(costs.sources, [](const std::string& each) { return each.starts_with("messages"); }),
            1);
}

TEST(PredictCosts, RdmaTakesNoTimesOfTcp) {
  const ps::TemporaryFolder folder;
  PredictFlags flags;
  flags.transport = "rdma";
  flags.costs = {write_run(folder.file("tcp.json"), {run_row("tcp", 64, 12), run_row("tcp", 1'000'064, 212)})};
  EXPECT_THAT(error_of(description_of(flags).status()), HasSubstr("--transport rdma needs no times of tcp"));
}

TEST(PredictCosts, OtherFilesAreRefused) {
  Costs costs;
  EXPECT_THAT(error_of(read({run_row("shm mapped", 64, 1)}, costs)),
              HasSubstr("neither rows of `bench apply` for adam and int8"));
  EXPECT_THAT(error_of(read({nlohmann::json::object()}, costs)), HasSubstr("predict_costs.json: result 1 is damaged"));
  const ps::TemporaryFolder folder;
  const std::string path = folder.file("no_run.json");
  std::ofstream(path) << "[]";
  EXPECT_THAT(error_of(read_costs(path, "sgd", PushFormat::fp32, costs)),
              HasSubstr("no_run.json: was not written by `gradrail bench"));
}

}  // namespace
}  // namespace gradrail::bench::predict
