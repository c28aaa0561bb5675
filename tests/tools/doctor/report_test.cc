#include "tools/doctor/report.h"

#include "absl/strings/str_split.h"
#include "gmock/gmock.h"
#include "nlohmann/json.hpp"
#include "tests/tools/doctor/recorded_host.h"

namespace gradrail::tools::doctor {
namespace {

using testing::Contains;
using testing::HasSubstr;
using testing::Not;

Report broken_report() {
  RecordedHost host = healthy_host();
  host.write("/proc/self/limits", limits("65536"))
      .write("/observed/verbs", "device mlx5_0 opened\nport mlx5_0 1 4096 4096");
  return host.examine({"rdma"});
}

TEST(Report, JsonHasEveryCheckWhole) {
  const auto whole = nlohmann::json::parse(to_json(broken_report()));
  for (const char* key : {"version", "machine", "versions", "checks", "proofs", "require"})
    EXPECT_TRUE(whole.contains(key)) << key;
  EXPECT_GT(whole["checks"].size(), 15u);
  for (const auto& check : whole["checks"]) {
    for (const char* key : {"name", "topic", "state", "evidence", "consequence", "remedy"})
      EXPECT_TRUE(check.contains(key)) << check;
    const bool complains = check["state"] == "warning" || check["state"] == "missing" || check["state"] == "broken";
    EXPECT_EQ(complains, !check["remedy"].get<std::string>().empty()) << check;
  }
  EXPECT_EQ(whole["machine"]["host"], "node17");
  EXPECT_EQ(whole["versions"]["nvidia_driver"], "580.65.06");
  EXPECT_EQ(whole["require"][0]["holds"], false);
}

TEST(Report, NamesOfChecksAreUnique) {
  std::set<std::string> names;
  for (const Check& check : healthy_host().examine().checks) EXPECT_TRUE(names.insert(check.name).second) << check.name;
}

TEST(Report, TextFitsAConsole) {
  const std::string text = to_text(broken_report(), false);
  for (const std::string& line : std::vector<std::string>(absl::StrSplit(text, '\n'))) {
    // A path or a command is not cut: it shall be copied whole.
    const bool one_word = line.find_last_of(' ') < 34 || line.size() <= 34;
    EXPECT_TRUE(line.size() <= 100 || one_word) << line;
  }
  EXPECT_THAT(text, HasSubstr("broken         memlock"));
  EXPECT_THAT(text, HasSubstr("so:    RDMA cannot even register"));
  EXPECT_THAT(text, HasSubstr("do:    ulimit -l unlimited"));
  EXPECT_THAT(text, HasSubstr("does not hold  rdma"));
  EXPECT_THAT(text, HasSubstr("1 broken, 1 missing, "));
}

TEST(Report, ColoursAreForTerminals) {
  const Report report = broken_report();
  EXPECT_THAT(to_text(report, false), Not(HasSubstr("\033[")));
  EXPECT_THAT(to_text(report, true), HasSubstr("\033[31mbroken"));
}

TEST(Conclude, TheWorstCountsAndEachSentenceOnce) {
  const Check check = conclude("t", "n",
                               {{State::ok, "a"},
                                {State::broken, "b", "lost", "fix"},
                                {State::warning, "c", "slow", "tune"},
                                {State::broken, "d", "lost", "fix"}});
  EXPECT_EQ(check.state, State::broken);
  EXPECT_THAT(check.evidence, testing::ElementsAre("b", "d", "c", "a"));
  EXPECT_EQ(check.consequence, "lost");
  EXPECT_EQ(check.remedy, "fix");
}

}  // namespace
}  // namespace gradrail::tools::doctor
