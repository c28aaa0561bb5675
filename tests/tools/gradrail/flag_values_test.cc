// Odd values of each flag: one line that names the flag and the value, never the default. The flags come from the
// parser itself, so that none can be missed.
#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "tests/tools/gradrail/reference.h"
#include "tools/gradrail/command_line.h"

namespace gradrail::tools {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::StartsWith;
using Words = std::vector<std::string>;

const Words kOddNumbers = {"-1", "nan", "inf", "1e999", "99999999999999999999", "0x10"};
const Words kOddHosts = {"-1", "99999999999999999999", "0x10", "a:b:c", "h:70000"};

Words with(Words values, const Words& more) {
  values.insert(values.end(), more.begin(), more.end());
  return values;
}

/// Values that do not follow the grammar of a text. A path or a name has none: a wrong one is an error of the run.
const std::map<std::string, Words> kGrammars = {
    {"--begin", with(kOddNumbers, {"6x"})},
    {"--bind", kOddHosts},
    {"--cores", with(kOddNumbers, {"3-1"})},
    {"--end", with(kOddNumbers, {"6x"})},
    {"--metrics_bind", with(kOddNumbers, {"here"})},
    {"--mode", with(kOddNumbers, {"ssp:", "ssp:-1", "backup:1", "quorum:nan", "quorum:2,grace=nan"})},
    {"--on", with(kOddNumbers, {"gpu:-1"})},
    {"--ps_device", with(kOddNumbers, {"gpu:", "gpu:-1"})},
    {"--ps_hosts", with(kOddHosts, {","})},
    {"--push", with(kOddNumbers, {"topk", "topk:0", "topk:nan", "topk:99"})},
    {"--rails", with(kOddNumbers, {"10.0.0.1,", "10.0.0.1,10.0.0.1", "here"})},
    {"--rendezvous", with(kOddNumbers, {"etcd://", "udp://a:1/j"})},
    {"--reserve", with(kOddNumbers, {"3-1"})},
    {"--streams", {"0", "65", "-1", "nan", "two"}},
    {"--worker_hosts", with(kOddHosts, {","})},
};
const std::set<std::string> kFreeTexts = {"--bind-host",      "--cert-file",  "--check",
                                          "--checkpoint_dir", "--cluster",    "--costs",
                                          "--data_dir",       "--gpu",        "--json",
                                          "--key-file",       "--logs_path",  "--matrix",
                                          "--model",          "--nic",        "--ofi-provider",
                                          "--ofi_provider",   "--out",        "--parent",
                                          "--plugin-dir",     "--plugin_dir", "--require",
                                          "--secret-file",    "--svg",        "--timeline_filename",
                                          "--topology",       "--transport",  "--trusted-ca-file",
                                          "cluster",          "file",         "FOLDER"};

struct Flag {
  ReferenceCommand command;
  ReferenceOption option;

  bool is_positional() const { return !option.names.front().starts_with('-'); }
  /// The name in the messages of the parser: the first long one.
  std::string name() const {
    const auto is_long = [](const std::string& each) { return each.starts_with("--"); };
    const auto found = std::find_if(option.names.begin(), option.names.end(), is_long);
    return found == option.names.end() ? option.names.front() : *found;
  }
};

class FlagValues : public testing::Test {
 protected:
  FlagValues() {
    visit_commands(describe_command(line_.app), [&](const ReferenceCommand& command) {
      for (const ReferenceOption& option : command.options) flags_.push_back({command, option});
      for (const ReferenceOption& option : command.positionals) flags_.push_back({command, option});
    });
  }

  /// The flags of all commands that take a value, or those that take none.
  std::vector<Flag> flags(bool with_value) const {
    std::vector<Flag> found;
    for (const Flag& flag : flags_)
      if (flag.option.value.empty() != with_value) found.push_back(flag);
    return found;
  }

  /// The command line with this value, and with all that the command requires before it reads a value.
  static Words arguments(const Flag& flag, const std::string& value) {
    Words words(flag.command.path.begin() + 1, flag.command.path.end());
    for (const ReferenceOption& other : flag.command.options) {
      if (other.required && other.names != flag.option.names)
        words.insert(words.end(), {other.names.front(), usable(other)});
    }
    if (!flag.is_positional()) {
      // "--ps=" would be a flag without a value.
      words.push_back(value.empty() ? flag.name() : flag.name() + '=' + value);
      if (value.empty()) words.push_back(value);
    }
    for (const ReferenceOption& other : flag.command.positionals) {
      if (other.names == flag.option.names) {
        words.push_back(value);
        break;
      }
      if (other.required) words.push_back(usable(other));
    }
    return words;
  }
  static std::string usable(const ReferenceOption& option) {
    if (!option.choices.empty()) return option.choices.front();
    return option.names.front() == "--bind" ? "127.0.0.1:2300" : "text";
  }

  /// The line for these arguments; "" if the parser accepts them.
  std::string refusal(Words words) {
    std::reverse(words.begin(), words.end());  // CLI11 takes them so
    try {
      line_.app.parse(std::move(words));
    } catch (const CLI::ParseError& error) {
      return usage_line(&line_.app, error);
    }
    return "";
  }

  void expect_refusal(const Flag& flag, const std::string& value, const std::string& shown) {
    std::vector<testing::Matcher<std::string>> names;
    for (const std::string& name : flag.option.names) names.push_back(HasSubstr(name));
    const std::string line = refusal(arguments(flag, value));
    EXPECT_THAT(line, AllOf(StartsWith("gradrail: "), AnyOfArray(names), HasSubstr(shown)))
        << flag.command.name(" ") << ' ' << flag.name() << ' ' << value.substr(0, 30);
    EXPECT_EQ(std::count(line.begin(), line.end(), '\n'), line.empty() ? 0 : 1) << line;
  }

  CommandLine line_;
  std::vector<Flag> flags_;
};

TEST_F(FlagValues, EmptyTextsControlCharactersAndLongTextsAreRefused) {
  std::string accents = "x";
  for (int i = 0; i < 50'000; ++i) accents += "é";  // byte 100 is inside a character
  const std::vector<Flag> all = flags(true);
  EXPECT_GT(all.size(), 200u);
  for (const Flag& flag : all) {
    expect_refusal(flag, "", "''");
    expect_refusal(flag, "  ", "'  '");
    expect_refusal(flag, "\x01", R"('\x01')");
    expect_refusal(flag, "a\nb", R"('a\x0ab')");
    expect_refusal(flag, accents, "é…' (100001 bytes)");
  }
}

TEST_F(FlagValues, NumbersAndChoicesAreChecked) {
  for (const Flag& flag : flags(true)) {
    if (kFreeTexts.contains(flag.name()) || kGrammars.contains(flag.name())) continue;
    EXPECT_NE(flag.option.value, "TEXT") << flag.name() << ": state in this file which texts it takes";
    for (const std::string& value : kOddNumbers) expect_refusal(flag, value, value);
  }
}

TEST_F(FlagValues, TextsFollowTheirGrammar) {
  for (const Flag& flag : flags(true)) {
    const auto grammar = kGrammars.find(flag.name());
    if (grammar == kGrammars.end()) continue;
    for (const std::string& value : grammar->second) expect_refusal(flag, value, value);
  }
}

TEST_F(FlagValues, TheListsOfThisFileNameFlags) {
  std::set<std::string> names;
  for (const Flag& flag : flags(true)) names.insert(flag.name());
  for (const auto& [name, values] : kGrammars) EXPECT_TRUE(names.contains(name)) << name;
  for (const std::string& name : kFreeTexts) EXPECT_TRUE(names.contains(name)) << name;
}

TEST_F(FlagValues, SwitchesTakeTruthValuesOnly) {
  size_t checked = 0;
  for (const Flag& flag : flags(false)) {
    if (flag.name() == "--help") continue;
    for (const std::string value : {"maybe", "2", "-1"}) {
      const std::string line = refusal(arguments(flag, value));
      EXPECT_THAT(line, StartsWith("gradrail: " + flag.name())) << flag.command.name(" ") << " " << value;
      ++checked;
    }
  }
  EXPECT_GT(checked, 40u);
}

TEST_F(FlagValues, AUsableLineIsAccepted) {
  EXPECT_THAT(refusal({"train", "--model", "linear", "--batch_size=010", "--checksums=yes"}), IsEmpty());
  EXPECT_EQ(line_.train.batch_size, 10);
}

}  // namespace
}  // namespace gradrail::tools
