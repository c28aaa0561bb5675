#include "launch/etcd/roster.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace gradrail::launch {
namespace {

using ::testing::HasSubstr;

Etcd::Entry entry(const std::string& key, const std::string& value) { return {key, value, 1}; }
std::string record(Sizes sizes) { return to_text({.address = "10.0.0.1:5", .id = "x", .sizes = sizes}); }

TEST(Roster, ACardComesBackAsItWas) {
  const auto back = task_record_from(to_text({.address = "[::1]:5", .id = "ab", .sizes = {.ps = 2, .workers = 7}}));
  ASSERT_TRUE(back.has_value());
  EXPECT_EQ(back->address, "[::1]:5");
  EXPECT_EQ(back->id, "ab");
  EXPECT_EQ(back->sizes, (Sizes{.ps = 2, .workers = 7}));
}

TEST(Roster, WhatIsNoCardIsNone) {
  for (const char* text :
       {"", "[]", "{}", "7", R"({"address": 1, "id": "x", "ps": 1, "workers": 1})",
        R"({"address": "a", "id": "x", "ps": 0, "workers": 1})",
        R"({"address": "a", "id": "x", "ps": -1, "workers": 1})",
        R"({"address": "a", "id": "x", "ps": 1, "workers": 99999999999999999999})",
        R"({"address": "a", "id": "x", "ps": 1.5, "workers": 1})", "\xff\xfe", R"({"address": "a")"}) {
    EXPECT_FALSE(task_record_from(text).has_value()) << text;
  }
}

TEST(Roster, KeysOfOthersAreNotOurs) {
  const Roster roster("job", {.revision = 1,
                              .entries = {entry("/gradrail/job/ps/0", record({})), entry("/gradrail/job/worker/1", "?"),
                                          entry("/gradrail/job2/worker/0", record({})), entry("/gradrail/job/x/0", "?"),
                                          entry("/gradrail/job/worker/", "?"), entry("/gradrail/job/worker/0x", "?"),
                                          entry("/gradrail/job/worker/0/0", "?"), entry("", "")}});
  EXPECT_NE(roster.find({"ps", 0}), nullptr);
  EXPECT_EQ(roster.first_free("worker", 5), 0u);
  EXPECT_EQ(roster.first_free("ps", 1), std::nullopt);
  ASSERT_NE(roster.find({"worker", 1}), nullptr);
  EXPECT_FALSE(roster.find({"worker", 1})->record.has_value()) << "unreadable, and taken";
}

TEST(Roster, SizesComeFromTheTasksThatArePresent) {
  const Roster empty("job", {});
  EXPECT_EQ(*agreed_sizes(empty, std::nullopt), std::nullopt);
  EXPECT_EQ(*agreed_sizes(empty, Sizes{.ps = 1, .workers = 4}), (Sizes{.ps = 1, .workers = 4}));
  const Roster roster("job",
                      {.revision = 1, .entries = {entry("/gradrail/job/ps/0", record({.ps = 2, .workers = 3}))}});
  EXPECT_EQ(*agreed_sizes(roster, std::nullopt), (Sizes{.ps = 2, .workers = 3}));
  EXPECT_EQ(*agreed_sizes(roster, Sizes{.ps = 2, .workers = 3}), (Sizes{.ps = 2, .workers = 3}));
  const auto refused = agreed_sizes(roster, Sizes{.ps = 2, .workers = 4});
  EXPECT_THAT(std::string(refused.status().message()),
              HasSubstr("--workers 4: the current run has --ps 2 --workers 3 (set by ps/0 at 10.0.0.1:5)"));
}

}  // namespace
}  // namespace gradrail::launch
