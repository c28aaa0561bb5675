#include "bench/driver/options.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <string>
#include <vector>

#include "CLI/CLI.hpp"
#include "bench/driver/command.h"
#include "bench/suites/exchange_flags.h"

namespace gradrail::bench {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::Key;
using ::testing::Not;
using ::testing::Pair;

/// `gradrail bench` with these words.
struct Parsed {
  explicit Parsed(const std::vector<std::string>& words) {
    add_bench_flags(command, flags);
    command.parse(std::vector<std::string>(words.rbegin(), words.rend()));
  }
  std::map<std::string, std::string> settings() const {
    return {flags.options.settings.begin(), flags.options.settings.end()};
  }

  CLI::App command;
  BenchFlags flags;
};

TEST(BenchOptions, ASuiteHasItsOwnBesideTheSharedOnes) {
  const Parsed put({"put", "-b", "64", "--bidirectional", "--window", "8", "--transport", "shm,tcp"});
  EXPECT_NE(put.flags.suite, nullptr);
  EXPECT_EQ(put.flags.suite->distributed(), nullptr);
  EXPECT_EQ(put.flags.options.suite, "put");
  EXPECT_EQ(put.flags.options.transports, (std::vector<std::string>{"shm", "tcp"}));
  const std::map<std::string, std::string> settings = put.settings();
  EXPECT_THAT(settings, AllOf(Contains(Pair("begin", "64")), Contains(Pair("bidirectional", "true")),
                              Contains(Pair("window", "8")), Contains(Pair("transport", "\"shm,tcp\"")),
                              Contains(Pair("seconds", "0.3")), Contains(Pair("block", "false"))));
  for (const char* name : {"workers", "help", "json", "format"}) EXPECT_THAT(settings, Not(Contains(Key(name))));
}

TEST(BenchOptions, SettingsOfAnExchangeNameNoPlace) {
  const Parsed run({"exchange", "--shards", "2", "--no-sum", "--job_name", "ps", "-J", "/tmp/run.json"});
  EXPECT_NE(run.flags.suite->distributed(), nullptr);
  const std::map<std::string, std::string> settings = run.settings();
  EXPECT_THAT(settings, AllOf(Contains(Pair("shards", "2")), Contains(Pair("no_sum", "true")),
                              Contains(Pair("mode", "\"\"")), Contains(Pair("push", "\"fp32\"")),
                              Contains(Pair("return", "\"fp32\"")), Contains(Pair("bucket_kib", "0"))));
  for (const char* name : {"json", "job_name", "task_index", "rendezvous", "stages"})
    EXPECT_THAT(settings, Not(Contains(Key(name))));
}

TEST(BenchOptions, StagesAreTheDefaultOfExchange) {
  const auto stages = [](const std::vector<std::string>& words) {
    return Parsed(words).flags.suite->distributed()->exchange.stages;
  };
  EXPECT_TRUE(stages({"exchange"}));
  EXPECT_FALSE(stages({"exchange", "--no-stages"}));
  EXPECT_FALSE(stages({"incast"}));
  EXPECT_TRUE(stages({"incast", "--stages"}));
}

TEST(BenchOptions, FlagsWithoutAnEffectAreRefused) {
  const std::vector<std::pair<std::string, std::vector<std::string>>> refused = {
      {"peers", {"--cluster", "--job_name", "--rendezvous", "--ps_hosts"}},
      {"apply", {"-w", "--transport"}},
      {"put", {"--rails", "--streams"}},
      {"replay", {"-b", "-e", "-f"}},
      {"matrix", {"--workers", "--mode", "--stages", "--no-stages"}},
      {"publish", {"-w", "-c", "--transport"}},
      {"staged", {"-n", "-w", "-c", "--transport"}},
      {"straggler", {"-n", "-w", "-c"}}};
  for (const auto& [suite, flags] : refused)
    for (const std::string& flag : flags)
      EXPECT_THROW(Parsed({suite, flag, "1"}), CLI::ParseError) << suite << " " << flag;
}

}  // namespace
}  // namespace gradrail::bench
