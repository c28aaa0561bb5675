#include "base/little_endian.h"

#include "gtest/gtest.h"

namespace gradrail {
namespace {

TEST(LittleEndian, TheLowestByteIsFirst) {
  std::byte bytes[4];
  store_le<uint32_t>(bytes, 0x04030201);
  for (int i = 0; i < 4; ++i) EXPECT_EQ(bytes[i], std::byte(i + 1));
  EXPECT_EQ(load_le<uint32_t>(bytes), 0x04030201u);
  EXPECT_EQ(load_le<uint16_t>(bytes + 1), 0x0302u);
  EXPECT_EQ(load_le<uint64_t>("\xff\xfe\xfd\xfc\xfb\xfa\xf9\xf8"), 0xf8f9fafbfcfdfeffu);
}

TEST(LittleEndian, AppendsEachSize) {
  std::string text = "x";
  append_le<uint8_t>(text, 0x31);
  append_le<uint16_t>(text, 0x3332);
  append_le<uint64_t>(text, 0);
  EXPECT_EQ(text, std::string("x123\0\0\0\0\0\0\0\0", 12));
}

}  // namespace
}  // namespace gradrail
