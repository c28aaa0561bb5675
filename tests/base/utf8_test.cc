#include "base/utf8.h"

#include "gtest/gtest.h"

namespace gradrail {
namespace {

TEST(Utf8, CountsTheBytesOfACharacter) {
  EXPECT_EQ(utf8_character_bytes("ab"), 1u);
  EXPECT_EQ(utf8_character_bytes("\xc3\xa9z"), 2u);
  EXPECT_EQ(utf8_character_bytes("\xe2\x82\xac"), 3u);
  EXPECT_EQ(utf8_character_bytes("\xf0\x9f\x98\x80"), 4u);
}

TEST(Utf8, RefusesWhatIsNoCharacter) {
  for (const char* const text : {"", "\xe9", "\xe9z", "\x80", "\xc0\xaf", "\xe0\x80\xaf", "\xed\xa0\x80", "\xe2\x82",
                                 "\xf4\x90\x80\x80", "\xf5\x80\x80\x80", "\xff"})
    EXPECT_EQ(utf8_character_bytes(text), 0u) << text;
}

}  // namespace
}  // namespace gradrail
