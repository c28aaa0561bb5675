#include "topology/cpu_set.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace gradrail::topology {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(CpuSet, ListFormatBothWays) {
  for (const char* list : {"", "0", "0-3,8,16-19", "63-64", "176", "0,2,4,65535"}) {
    const absl::StatusOr<CpuSet> set = CpuSet::parse(list);
    ASSERT_TRUE(set.ok()) << set.status();
    EXPECT_EQ(set->to_string(), list);
  }
}

TEST(CpuSet, WhatIsNoListIsNamed) {
  for (const char* list : {",", "1,", ",1", "a", "1-", "-1", "3-1", "0x3", "1 2", "65536", "0-99999999999", "1--2"}) {
    const absl::StatusOr<CpuSet> set = CpuSet::parse(list);
    ASSERT_FALSE(set.ok()) << list;
    EXPECT_THAT(std::string(set.status().message()), HasSubstr("not a list of cpus"));
  }
}

TEST(CpuSet, SetsAreEqualWhateverTheirHistory) {
  CpuSet grown{1, 500};
  grown.erase(500);
  EXPECT_EQ(grown, CpuSet{1});
  EXPECT_EQ((CpuSet{1, 700} & CpuSet{1}), CpuSet{1});
  EXPECT_EQ((CpuSet{1, 700} - CpuSet{700}), CpuSet{1});
  EXPECT_EQ((CpuSet{1} | CpuSet{700}), (CpuSet{700} | CpuSet{1}));
}

TEST(CpuSet, Relations) {
  const CpuSet set{2, 3, 130};
  EXPECT_EQ(set.count(), 3);
  EXPECT_EQ(set.first(), 2);
  EXPECT_EQ(CpuSet().first(), -1);
  EXPECT_THAT(set.to_vector(), ElementsAre(2, 3, 130));
  EXPECT_TRUE(set.includes(CpuSet{130}));
  EXPECT_TRUE(set.includes(CpuSet{}));
  EXPECT_FALSE(set.includes(CpuSet{2, 4}));
  EXPECT_TRUE(set.intersects(CpuSet{4, 130}));
  EXPECT_FALSE(set.intersects(CpuSet{4, 131}));
  EXPECT_FALSE(set.contains(-1));
}

}  // namespace
}  // namespace gradrail::topology
