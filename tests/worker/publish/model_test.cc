#include "worker/publish/model.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>

#include "worker/publish/digest.h"
#include "worker/publish/message.h"

namespace gradrail::publish {
namespace {

const Schema kSchema = {{"w", {3, 5}}, {"scale", {}}};

std::vector<uint16_t> rounded(const std::vector<float>& values) {
  const Model model = *Model::create(Format::bf16, {{"w", {static_cast<int64_t>(values.size())}}});
  std::vector<uint16_t> bits(values.size());
  const float* const array = values.data();
  model.to_bits({&array, 1}, reinterpret_cast<std::byte*>(bits.data()));
  return bits;
}

float widened(uint16_t bits) { return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16); }

TEST(PublishedModel, bf16_rounds_to_nearest_even) {
  const float step = 0x1p-7f;
  EXPECT_EQ(rounded({1.0f, 1.0f + 0.49f * step, 1.0f + 0.5f * step, 1.0f + 0.51f * step, 1.0f + 1.5f * step, -0.0f}),
            (std::vector<uint16_t>{0x3f80, 0x3f80, 0x3f80, 0x3f81, 0x3f82, 0x8000}));
  const float most = std::numeric_limits<float>::max();
  EXPECT_EQ(rounded({most, -most, std::numeric_limits<float>::infinity()}),
            (std::vector<uint16_t>{0x7f80, 0xff80, 0x7f80}));
}

TEST(PublishedModel, bf16_keeps_nan) {
  // The rounding of these bits would carry into the exponent.
  for (const uint32_t bits : {0x7fffffffu, 0xffffffffu, 0x7f800001u, 0x7fc00000u})
    EXPECT_TRUE(std::isnan(widened(rounded({std::bit_cast<float>(bits)}).front()))) << bits;
}

TEST(PublishedModel, bf16_of_a_bf16_value_is_that_value) {
  for (uint32_t bits = 0; bits < 0x10000; ++bits) {
    const auto given = static_cast<uint16_t>(bits);
    const bool quiet = !std::isnan(widened(given)) || (given & 0x40) != 0;
    EXPECT_TRUE(!quiet || rounded({widened(given)}).front() == given) << given;
  }
}

TEST(PublishedModel, tensors_follow_each_other) {
  const Model model = *Model::create(Format::bf16, kSchema);
  EXPECT_EQ(model.bytes(), 32u);
  EXPECT_EQ(model.offset(1), 30u);
  EXPECT_EQ(model.offset(2), model.bytes());
  const Model large = *Model::create(Format::fp32, {{"w", {static_cast<int64_t>(kChunkBytes) / 2 + 1}}});
  ASSERT_EQ(large.chunk_count(), 3u);
  EXPECT_EQ(large.chunk(1).offset, kChunkBytes);
  EXPECT_EQ(large.chunk(2).bytes, 4u);
}

TEST(PublishedModel, its_text_is_decoded) {
  const Model model = *Model::create(Format::fp32, kSchema);
  const auto decoded = Model::decode(model.text());
  ASSERT_TRUE(decoded.ok()) << decoded.status();
  EXPECT_EQ(decoded->schema(), kSchema);
  EXPECT_EQ(decoded->text(), model.text());
  for (size_t bytes = 0; bytes < model.text().size(); ++bytes)
    EXPECT_FALSE(Model::decode(model.text().substr(0, bytes)).ok()) << bytes;
  EXPECT_FALSE(Model::decode(model.text() + '\0').ok());
  std::string other = model.text();
  other[0] = 2;
  EXPECT_FALSE(Model::decode(other).ok());
}

TEST(PublishedModel, its_hash_covers_names_shapes_format_and_bits) {
  const auto hash = [](Format format, const Schema& schema, std::byte first) {
    const Model model = *Model::create(format, schema);
    std::vector<std::byte> bits(model.bytes());
    bits.front() = first;
    return hex_of(digest_of(model, chunk_digests(model, bits.data())));
  };
  const std::string one = hash(Format::fp32, kSchema, std::byte{0});
  EXPECT_EQ(one, hash(Format::fp32, kSchema, std::byte{0}));
  EXPECT_NE(one, hash(Format::fp32, kSchema, std::byte{1}));
  EXPECT_NE(one, hash(Format::bf16, kSchema, std::byte{0}));
  EXPECT_NE(one, hash(Format::fp32, {{"w", {5, 3}}, {"scale", {}}}, std::byte{0}));
  EXPECT_NE(one, hash(Format::fp32, {{"v", {3, 5}}, {"scale", {}}}, std::byte{0}));
}

TEST(PublishMessage, each_damaged_bit_of_a_version_is_refused) {
  const std::string key = session_key("secret", "one", "two");
  const VersionHeader header{
      .version = 7, .published_unix_ns = 9, .digest = sha256({}), .is_delta = true, .body_bytes = 11};
  const std::string text = encode(header, key, 3);
  const auto decoded = decode_version(text, key, 3);
  ASSERT_TRUE(decoded.ok()) << decoded.status();
  EXPECT_EQ(decoded->version, 7u);
  EXPECT_EQ(decoded->digest, header.digest);
  EXPECT_EQ(decoded->body_bytes, 11u);
  EXPECT_TRUE(decoded->is_delta);
  for (size_t bit = 0; bit < 8 * text.size(); ++bit) {
    std::string damaged = text;
    damaged[bit / 8] = static_cast<char>(damaged[bit / 8] ^ (1 << (bit % 8)));
    EXPECT_TRUE(absl::IsDataLoss(decode_version(damaged, key, 3).status())) << bit;
  }
  EXPECT_FALSE(decode_version(text, key, 4).ok()) << "a repeated header";
  EXPECT_FALSE(decode_version(text, session_key("other", "one", "two"), 3).ok());
  EXPECT_FALSE(decode_version(text.substr(1), key, 3).ok());
}

TEST(PublishMessage, requests_and_frames_are_checked) {
  const Request request{.follow = Follow::each, .have = Have{.version = 5, .digest = sha256({})}};
  const std::string text = encode(request);
  ASSERT_EQ(text.size(), kRequestBytes);
  const auto decoded = decode_request(text);
  ASSERT_TRUE(decoded.ok());
  EXPECT_EQ(decoded->follow, Follow::each);
  EXPECT_EQ(decoded->have->version, 5u);
  EXPECT_FALSE(decode_request(encode(Request{}))->have.has_value());
  for (const size_t place : {0u, 4u}) {
    std::string damaged = text;
    damaged[place] = 2;
    EXPECT_FALSE(decode_request(damaged).ok()) << place;
  }
  const std::string frame = frame_text(FrameType::idle, "");
  EXPECT_TRUE(decode_frame(frame).ok());
  EXPECT_FALSE(decode_frame(frame_text(FrameType::idle, "x").substr(0, kFrameBytes)).ok());
  EXPECT_FALSE(decode_frame(std::string(kFrameBytes, '\xff')).ok());
  EXPECT_TRUE(absl::IsAborted(decode_end(encode_end(absl::AbortedError("ended")))));
  EXPECT_EQ(decode_end(encode_end(absl::AbortedError("ended"))).message(), "ended");
  EXPECT_FALSE(decode_end(std::string(4, '\0')).ok()) << "an end is never a success";
}

}  // namespace
}  // namespace gradrail::publish
