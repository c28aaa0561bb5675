#include "worker/publish/delta.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <cstring>
#include <limits>
#include <random>

namespace gradrail::publish {
namespace {

constexpr Format kFormats[] = {Format::bf16, Format::fp32};

std::vector<std::byte> random_bytes(size_t bytes, std::mt19937_64& random) {
  std::vector<std::byte> made(bytes);
  for (std::byte& each : made) each = static_cast<std::byte>(random());
  return made;
}

void store(Format format, std::vector<std::byte>& bits, size_t element, uint32_t value) {
  std::memcpy(bits.data() + element * element_bytes(format), &value, element_bytes(format));
}

uint32_t load(Format format, const std::vector<std::byte>& bits, size_t element) {
  uint32_t value = 0;
  std::memcpy(&value, bits.data() + element * element_bytes(format), element_bytes(format));
  return value;
}

/// A value of bits that arithmetic would treat in a special way: NaN with a payload, zeros, denormals, infinities.
uint32_t special(Format format, std::mt19937_64& random) {
  constexpr uint32_t kValues[] = {0,          0x80000000, 0x7fc00000, 0x7fc0beef, 0xffffffff, 0x7f800000,
                                  0xff800000, 1,          0x00010000, 0x807fffff, 0x007f0000, 0x3f800000};
  const uint32_t value = kValues[random() % std::size(kValues)];
  return format == Format::bf16 ? value >> 16 : value;
}

void change(Format format, std::vector<std::byte>& bits, std::mt19937_64& random) {
  const size_t count = bits.size() / element_bytes(format);
  const uint64_t one_in = uint64_t{1} << (random() % 12);  // all elements, or one in 2,048
  for (size_t i = 0; i < count; ++i) {
    if (random() % one_in != 0) continue;
    const uint32_t near = load(format, bits, i) + static_cast<uint32_t>(random() % 5) - 2;
    const uint64_t way = random() % 4;
    store(format, bits, i, way < 2 ? near : way == 2 ? special(format, random) : static_cast<uint32_t>(random()));
  }
}

TEST(Delta, restores_all_bits) {
  const char* const given = std::getenv("GRADRAIL_TEST_SEED");
  const uint64_t seed = given != nullptr ? std::strtoull(given, nullptr, 10) : std::random_device()();
  SCOPED_TRACE(::testing::Message() << "GRADRAIL_TEST_SEED=" << seed << " repeats this test");
  std::mt19937_64 random(seed);
  size_t kinds[4] = {};
  for (int round = 0; round < 300; ++round) {
    const Format format = kFormats[round % 2];
    const size_t count = 1 + random() % (round % 10 == 0 ? 100'000 : 300);
    const std::vector<std::byte> before = random_bytes(count * element_bytes(format), random);
    std::vector<std::byte> now = before;
    if (round % 7 == 1) {
      now = random_bytes(before.size(), random);  // a difference takes more bytes than the bits
    } else if (round % 7 != 0) {
      change(format, now, random);
    }
    std::vector<std::byte> delta;
    const bool differs = append_delta(format, before, now, delta);
    EXPECT_EQ(differs, before != now);
    EXPECT_LE(delta.size(), now.size() + kChunkHeaderBytes);
    ++kinds[std::to_integer<size_t>(delta[3]) >> 6];
    std::vector<std::byte> bits = before;
    absl::Span<const std::byte> rest(delta);
    bool changed = false;
    ASSERT_TRUE(apply_delta(format, rest, absl::MakeSpan(bits), changed).ok());
    EXPECT_EQ(changed, differs);
    EXPECT_TRUE(rest.empty());
    ASSERT_EQ(bits, now) << "round " << round;
  }
  for (const size_t kind : kinds) EXPECT_GT(kind, 0u);  // each kind was tried
}

TEST(Delta, a_step_of_few_elements_is_short) {
  std::vector<std::byte> before(kChunkBytes);
  for (const Format format : kFormats) {
    std::vector<std::byte> now = before;
    const size_t count = now.size() / element_bytes(format);
    for (size_t i = 0; i < count; i += 100) store(format, now, i, 1);
    std::vector<std::byte> delta;
    append_delta(format, before, now, delta);
    EXPECT_EQ(delta.size(),
              kChunkHeaderBytes + 2 * ((count + 99) / 100));  // one byte for the gap, one for the difference
  }
}

TEST(Delta, damaged_deltas_are_refused_or_change_other_bits) {
  std::mt19937_64 random(1);
  for (int round = 0; round < 3000; ++round) {
    const Format format = kFormats[round % 2];
    const size_t count = 1 + random() % 200;
    const std::vector<std::byte> before = random_bytes(count * element_bytes(format), random);
    std::vector<std::byte> now = before;
    change(format, now, random);
    std::vector<std::byte> delta;
    append_delta(format, before, now, delta);
    if (round % 2 == 0) {
      delta.resize(random() % delta.size());
    } else {
      delta[random() % delta.size()] ^= static_cast<std::byte>(1 + random() % 255);
    }
    // Exact sizes: the address sanitizer sees each access beyond the end.
    const std::vector<std::byte> exact(delta.begin(), delta.end());
    std::vector<std::byte> bits = before;
    absl::Span<const std::byte> rest(exact);
    bool changed = false;
    const absl::Status status = apply_delta(format, rest, absl::MakeSpan(bits), changed);
    if (round % 2 == 0) {
      EXPECT_TRUE(absl::IsDataLoss(status)) << status;
    } else {
      EXPECT_TRUE(!status.ok() || bits != now || !rest.empty() || exact != delta || now == before) << round;
    }
  }
}

TEST(Delta, each_wrong_form_is_refused) {
  const auto refused = [](std::vector<uint8_t> bytes, size_t elements = 10) {
    std::vector<std::byte> delta(bytes.size());
    std::memcpy(delta.data(), bytes.data(), bytes.size());
    absl::Span<const std::byte> rest(delta);
    std::vector<std::byte> bits(elements * 2);
    bool changed = false;
    return absl::IsDataLoss(apply_delta(Format::bf16, rest, absl::MakeSpan(bits), changed));
  };
  EXPECT_FALSE(refused({2, 0, 0, 0x40, 9, 2}));
  EXPECT_TRUE(refused({2, 0, 0, 0x40, 10, 2})) << "a gap beyond the end";
  EXPECT_TRUE(refused({3, 0, 0, 0x40, 9, 2})) << "truncated";
  EXPECT_TRUE(refused({3, 0, 0, 0x40, 9, 2, 0})) << "a gap without a difference";
  EXPECT_TRUE(refused({6, 0, 0, 0x40, 0x80, 0x80, 0x80, 0x80, 0x10, 2})) << "a varint of more than 32 bits";
  EXPECT_TRUE(refused({1, 0, 0, 0x00, 0})) << "payload of an unchanged chunk";
  EXPECT_FALSE(refused({4, 0, 0, 0x80, 1, 2, 2, 2})) << "bits of elements 0 and 9";
  EXPECT_TRUE(refused({4, 0, 0, 0x80, 1, 4, 2, 2})) << "a bit beyond the last element";
  EXPECT_TRUE(refused({2, 0, 0, 0x80, 1, 0})) << "a bit without a difference";
  EXPECT_TRUE(refused({4, 0, 0, 0x80, 1, 0, 2, 2})) << "a difference without a bit";
  EXPECT_TRUE(refused({2, 0, 0, 0xc0, 1, 2})) << "raw bits of another length";
  EXPECT_TRUE(refused({0, 0, 0})) << "truncated header";
}

}  // namespace
}  // namespace gradrail::publish
