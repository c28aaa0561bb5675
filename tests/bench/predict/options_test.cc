// Flags, sweeps and recorded costs.
#include "bench/predict/options.h"

#include <algorithm>
#include <fstream>

#include "bench/predict/cost_file.h"
#include "bench/predict/sweep.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/ps/checkpoint/checkpoint_files.h"

namespace gradrail::bench::predict {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::string error_of(const absl::Status& status) { return std::string(status.message()); }

TEST(PredictOptions, MistakesNameTheirFlag) {
  const auto error = [](auto change) {
    PredictFlags flags;
    change(flags);
    return error_of(description_of(flags).status());
  };
  EXPECT_THAT(error([](PredictFlags& f) { f.model = "10X"; }), HasSubstr("--model 10X: is no number of bytes"));
  EXPECT_THAT(error([](PredictFlags& f) { f.model = "/dev/null"; }),
              HasSubstr("--model /dev/null: is no regular file"));
  EXPECT_THAT(error([](PredictFlags& f) { f.model = "10"; }), HasSubstr("multiple of 4"));
  EXPECT_THAT(error([](PredictFlags& f) { f.load.slow_workers = 5; }), HasSubstr("--slow_workers 5: there are 4"));
  EXPECT_THAT(error([](PredictFlags& f) { f.load.slow_workers = 2; }),
              HasSubstr("--slow_workers 2: has no effect without a compute time; give --compute_ms"));
  EXPECT_THAT(error([](PredictFlags& f) { f.load.compute_sigma = 0.5; }), HasSubstr("--compute_sigma 0.5: has no"));
  EXPECT_THAT(error([](PredictFlags& f) { f.mode = "quorum:5"; }), HasSubstr("quorum:5"));
  EXPECT_THAT(error([](PredictFlags& f) { f.mode = "quorum:2,grace=auto"; }), HasSubstr("grace=auto"));
  EXPECT_THAT(error([](PredictFlags& f) { f.failures.mtbf_hours = 1e-6; }), HasSubstr("--mtbf 1e-06"));
  EXPECT_THAT(
      error([](PredictFlags& f) { f.failures.mtbf_hours = 50, f.failures.run_hours = 1, f.save_cost_s = 3600; }),
      HasSubstr("--save_cost_s 3600: must be less than a run, which has 3600 s (--run_hours 1)"));
  EXPECT_THAT(error([](PredictFlags& f) { f.cluster.workers = 65536, f.model = "64G"; }), HasSubstr("--bucket_kib"));
  EXPECT_THAT(error([](PredictFlags& f) { f.transport = "rdma", f.cluster.queue_kib = 64; }),
              HasSubstr("--queue_kib 64: --transport rdma has no acknowledgments of TCP; omit one of the flags"));
  EXPECT_THAT(error([](PredictFlags& f) { f.costs = {"missing.json"}; }), HasSubstr("missing.json"));
}

TEST(PredictOptions, ValuesOfASweepHaveTheChecksOfFlags) {
  PredictFlags flags;
  ASSERT_TRUE(set_value("workers", "64", flags).ok());
  EXPECT_EQ(flags.cluster.workers, 64u);
  ASSERT_TRUE(set_value("mode", "ssp:2", flags).ok());
  EXPECT_EQ(flags.mode, "ssp:2");
  EXPECT_EQ(flags.cluster.workers, 64u) << "other values stay";
  EXPECT_THAT(error_of(set_value("workers", "0", flags)), HasSubstr("--sweep workers=0"));
  for (const char* name : {"wokers", "json", "check", "costs", "help"})
    EXPECT_THAT(error_of(set_value(name, "1", flags)), HasSubstr("has no value to sweep")) << name;
  EXPECT_TRUE(set_value("frame-bytes", "14", flags).ok());
}

TEST(PredictOptions, ASaveReadsParametersAndState) {
  PredictFlags flags;
  flags.cluster.ps = 2;
  const auto cost = [&] { return description_of(flags)->failures.save_cost_s; };
  const double sgd = cost();
  EXPECT_NEAR(sgd, (128 << 20) * Costs{}.gradient_ns_per_byte * 1e-9, 1e-9);
  flags.optimizer = "adam";
  EXPECT_NEAR(cost(), 3 * sgd, 1e-9);
  flags.save_cost_s = 7;
  EXPECT_EQ(cost(), 7);
}

TEST(PredictSweep, NumbersAndTexts) {
  EXPECT_THAT(parse_sweep("workers=1:16:*4")->values, ElementsAre("1", "4", "16"));
  EXPECT_THAT(parse_sweep("nic=0.1:0.3:+0.1")->values, ElementsAre("0.1", "0.2", "0.3"));
  EXPECT_THAT(parse_sweep("loss=0:0.02:+0.01")->values, ElementsAre("0", "0.01", "0.02"));
  EXPECT_THAT(error_of(parse_sweep("loss=0:0.02:*2").status()), HasSubstr("0 stays 0 with each factor"));
  EXPECT_THAT(parse_sweep("mode=sync,ssp:2")->values, ElementsAre("sync", "ssp:2"));
  EXPECT_THAT(parse_sweep("mode=quorum:3,grace=5,sync")->values, ElementsAre("quorum:3,grace=5", "sync"));
  for (const auto& [wrong, why] : std::vector<std::pair<const char*, const char*>>{
           {"workers", "must be NAME="},
           {"=1", "must be NAME="},
           {"workers=", "must be NAME="},
           {"workers=1:16:*1", "'*1' must be * and a number above 1"},
           {"workers=1:16:+0", "'+0' must be + and a number above 0"},
           {"workers=16:1:*2", "'16' and '1' must be numbers with 0 <= FIRST <= LAST"},
           {"workers=nan:16:*2", "'nan' and '16' must be numbers"},
           {"workers=-1:16:+1", "'-1' and '16' must be numbers"},
           {"workers=1:1000000:+1", "more than 1000 values; give a larger step"}})
    EXPECT_THAT(error_of(parse_sweep(wrong).status()), HasSubstr(why)) << wrong;
}

std::string row(const std::string& path, uint64_t bytes, double micros) {
  return R"({"path":")" + path + R"(","what":"","size":)" + std::to_string(bytes) +
         R"(,"count":1,"type":"float","percentiles":{"iterations":1,"min_us":1,"max_us":1,"p50_us":)" +
         std::to_string(micros) +
         R"(,"mean_us":1,"stdev_us":0,"p99_us":1,"p999_us":1},"distribution_us":[],"rounds_us":[],"alg_bytes":1,)"
         R"("bus_bytes":1,"nwrong":0,"failed":"","why":"","stages":[],"more":{}})";
}

absl::Status read(const std::string& rows, Costs& costs) {
  const ps::TemporaryFolder folder;
  const std::string path = folder.file("predict_costs.json");
  std::ofstream(path) << R"({"config":{},"machine":{},"results":[)" << rows << "]}";
  return read_costs(path, "adam", PushFormat::int8, costs);
}

TEST(PredictCosts, ApplyAndPackingOfTheLargestSize) {
  Costs costs;
  const absl::Status status = read(
      row("adam, 1 gradient int8, 0 targets", 1000, 9) + "," + row("adam, 1 gradient int8, 0 targets", 1'000'000, 500) +
          "," + row("sgd, 1 gradient int8, 0 targets", 1'000'000, 100) + "," +
          row("sgd, 4 gradients int8, 0 targets", 1'000'000, 400) + "," + row("pack int8", 1'000'000, 120),
      costs);
  ASSERT_TRUE(status.ok()) << status;
  EXPECT_NEAR(costs.gradient_ns_per_byte, 0.1, 1e-9);
  EXPECT_NEAR(costs.apply_ns_per_byte, 0.4, 1e-9);
  EXPECT_NEAR(costs.pack_ns_per_byte, 0.12, 1e-9);
  EXPECT_EQ(costs.message_us, Costs{}.message_us);
}

TEST(PredictCosts, MessagesOfAnExchange) {
  Costs costs;
  ASSERT_TRUE(read(row("tcp", 64, 12) + "," + row("tcp", 1'000'064, 212) + "," + row("shm mapped", 64, 1), costs).ok());
  EXPECT_NEAR(costs.message_us, 3, 1e-9);
  EXPECT_NEAR(costs.send_ns_per_byte, 0.1, 1e-9);
  EXPECT_NEAR(costs.receive_ns_per_byte, 0.1, 1e-9);
}

TEST(PredictCosts, TimesThatNoMachineHasAreRefused) {
  Costs costs;
  EXPECT_THAT(error_of(read(row("tcp", 64, 15) + "," + row("tcp", 128, 14), costs)),
              HasSubstr("64 bytes over tcp took 15.00 us and 128 bytes 14.00 us, so that a byte has no cost"));
  for (const double us : {-5.0, 1e300})
    EXPECT_THAT(error_of(read(row("tcp", 64, 12) + "," + row("tcp", 128, us), costs)),
                HasSubstr("result 2 is damaged"));
  EXPECT_THAT(error_of(read(row("tcp", 64, 0) + "," + row("tcp", 128, 0), costs)), HasSubstr("neither rows of"));
  EXPECT_EQ(costs.message_us, Costs{}.message_us);
}

TEST(PredictCosts, AReplacedSourceIsNotNamed) {
  Costs costs = recorded_costs(PushFormat::fp32);
  ASSERT_TRUE(read(row("tcp", 64, 12) + "," + row("tcp", 1'000'064, 212), costs).ok());
  EXPECT_EQ(std::ranges::count_if(costs.sources, [](const std::string& each) { return each.starts_with("messages"); }),
            1);
}

TEST(PredictCosts, OtherFilesAreRefused) {
  Costs costs;
  EXPECT_THAT(error_of(read(row("shm mapped", 64, 1), costs)),
              HasSubstr("neither rows of `bench apply` for adam and int8"));
  EXPECT_THAT(error_of(read("{}", costs)), HasSubstr("predict_costs.json: result 1 is damaged"));
  const ps::TemporaryFolder folder;
  const std::string path = folder.file("no_run.json");
  std::ofstream(path) << "[]";
  EXPECT_THAT(error_of(read_costs(path, "sgd", PushFormat::fp32, costs)),
              HasSubstr("no_run.json: was not written by `gradrail bench"));
}

}  // namespace
}  // namespace gradrail::bench::predict
