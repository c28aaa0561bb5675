#include "ps/protocol/mac.h"

#include <gtest/gtest.h>

#include <set>

namespace gradrail::ps {
namespace {

TEST(Mac, DifferentCutsGiveDifferentMacs) {
  std::set<std::string> macs;
  macs.insert(mac_of("k", {"ab", "c"}));
  macs.insert(mac_of("k", {"a", "bc"}));
  macs.insert(mac_of("k", {"abc"}));
  macs.insert(mac_of("k", {"abc", ""}));
  EXPECT_EQ(macs.size(), 4u);
  EXPECT_NE(data_key("secret", "token"), "token");
  EXPECT_EQ(data_key("", "token"), "token");
}

}  // namespace
}  // namespace gradrail::ps
