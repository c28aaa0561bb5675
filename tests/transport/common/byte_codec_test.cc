#include "transport/common/byte_codec.h"

#include <gtest/gtest.h>

#include <string>

namespace gradrail::transport::common {
namespace {

TEST(CommonByteCodec, fields_are_little_endian_and_come_back) {
  const std::string bytes =
      ByteWriter("mg").number(uint8_t{1}).number(uint32_t{0x02030405}).text("abc").raw("end").take();
  EXPECT_EQ(bytes, std::string("mg\x01\x05\x04\x03\x02\x03\x00"
                               "abcend",
                               15));
  ByteReader in(bytes);
  EXPECT_EQ(in.raw(2), "mg");
  EXPECT_EQ(in.number<uint8_t>(), 1);
  EXPECT_EQ(in.number<uint32_t>(), 0x02030405u);
  EXPECT_EQ(in.text(3), "abc");
  EXPECT_FALSE(in.complete()) << "a field is left";
  EXPECT_EQ(in.rest(), "end");
  EXPECT_TRUE(in.complete());
}

TEST(CommonByteCodec, after_an_incomplete_field_all_are_empty) {
  ByteReader in("\x01\x02\x03");
  EXPECT_EQ(in.number<uint32_t>(), 0u);
  EXPECT_FALSE(in.ok());
  EXPECT_EQ(in.number<uint8_t>(), 0) << "the bytes that are left are not another field";
  ByteReader text(
      std::string_view("\x04\x00"
                       "abcd",
                       6));
  EXPECT_EQ(text.text(3), "") << "longer than the limit";
  EXPECT_FALSE(text.ok());
}

TEST(CommonByteCodec, keys_open_only_whole_and_for_their_transport) {
  const std::string key = ByteWriter("tst1").number(uint64_t{42}).seal().take();
  ASSERT_EQ(key.size(), 16u);
  absl::StatusOr<ByteReader> in = open_key("test", "tst1", 16, key);
  ASSERT_TRUE(in.ok()) << in.status();
  EXPECT_EQ(in->number<uint64_t>(), 42u);
  EXPECT_TRUE(in->complete());
  for (size_t i = 0; i < key.size(); ++i) {
    std::string bad = key;
    bad[i] = static_cast<char>(bad[i] ^ 1);
    EXPECT_EQ(open_key("test", "tst1", 16, bad).status().code(), absl::StatusCode::kInvalidArgument) << i;
    EXPECT_FALSE(open_key("test", "tst1", 16, key.substr(0, i)).ok()) << i;
  }
  EXPECT_FALSE(open_key("test", "tst1", 16, key + "x").ok());
}

TEST(CommonByteCodec, text_of_a_peer_cannot_control_a_terminal) {
  EXPECT_EQ(printable("\x1b[31mred\n\xff"), "?[31mred??");
}

}  // namespace
}  // namespace gradrail::transport::common
