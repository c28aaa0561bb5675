#include "topology/views/svg.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace gradrail::topology {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

std::string picture_of(const std::string& source) {
  Machine machine;
  machine.source = source;
  return draw_svg(machine, Placement());
}

TEST(Svg, ALongDetailIsCutBetweenCharacters) {
  // The bytes of the character are at 59 and 60, 60 and 61, 61 and 62. The limit is at 61.
  const std::string character = "\xc3\xa9";
  for (const size_t at : {59, 60, 61}) {
    const std::string before(at, 'a');
    const std::string whole = at == 59 ? before + character : before;
    EXPECT_THAT(picture_of(before + character + std::string(20, 'b')), HasSubstr(">" + whole + "...<")) << at;
  }
}

TEST(Svg, AShortDetailIsNotCut) {
  EXPECT_THAT(picture_of(std::string(64, 'a')), Not(HasSubstr("...")));
  EXPECT_THAT(picture_of(std::string(65, 'a')), HasSubstr(std::string(61, 'a') + "..."));
}

/// The path of a saved machine need not be UTF-8: the picture was no XML.
TEST(Svg, WhatXmlDoesNotPermitIsReplaced) {
  EXPECT_THAT(picture_of("u\xe9 \xc3\xa9 \x01 \xef\xbf\xbf <"), HasSubstr(">u? \xc3\xa9 ? ? &lt;<"));
}

}  // namespace
}  // namespace gradrail::topology
