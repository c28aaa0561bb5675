#include "base/parse_number.h"

#include <cstdint>

#include "gtest/gtest.h"

namespace gradrail {
namespace {

TEST(ParseNumber, TakesWholeNumbersOfTheType) {
  EXPECT_EQ(parse_number<int>("-12"), -12);
  EXPECT_EQ(parse_number<uint16_t>("65535"), 65535);
  EXPECT_EQ(parse_number<uint64_t>("18446744073709551615"), UINT64_MAX);
  EXPECT_EQ(parse_number<uint32_t>("ff", 16), 255u);
  EXPECT_EQ(parse_number<double>("2.5"), 2.5);
}

TEST(ParseNumber, RefusesEverythingElse) {
  for (const char* text : {"", " 1", "1 ", "+1", "0x1", "1,2", "one", "-", "1.0", "99999999999999999999"})
    EXPECT_EQ(parse_number<int>(text), std::nullopt) << text;
  EXPECT_EQ(parse_number<uint32_t>("-1"), std::nullopt);
  EXPECT_EQ(parse_number<uint16_t>("65536"), std::nullopt);
  EXPECT_EQ(parse_number<double>("2.5x"), std::nullopt);
  EXPECT_EQ(parse_number<double>("1e3", std::chars_format::fixed), std::nullopt);
}

}  // namespace
}  // namespace gradrail
