// Parameters on their way back: rounded to bf16, and as the changes of an earlier answer.
#include "ps/optimizer/returns.h"

#include <bit>
#include <cstring>
#include <limits>
#include <vector>

#include "base/random.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "ps/protocol/return_format.h"
#include "tests/ps/optimizer/bf16.h"

namespace gradrail::ps {
namespace {

constexpr std::byte kUntouched{0xa5};
/// Stamps, the largest one included.
constexpr uint16_t kFirst = 65534, kSecond = 65535;

std::vector<uint16_t> rounded(const std::vector<float>& values) {
  std::vector<uint16_t> result;
  for (const float value : values) result.push_back(nearest(value));
  return result;
}

/// Any bits: also NaN, infinity and subnormal numbers.
std::vector<float> any_values(Random& random, size_t count) {
  std::vector<float> values(count);
  for (float& value : values) value = std::bit_cast<float>(static_cast<uint32_t>(random.next()));
  return values;
}

/// The drawing in return_format.h, element by element.
std::vector<std::byte> delta_of(const std::vector<uint16_t>& before, const std::vector<uint16_t>& after) {
  std::vector<std::byte> bytes(mask_bytes(after.size()));
  std::vector<uint16_t> changed;
  for (size_t i = 0; i < after.size(); ++i) {
    if (before[i] == after[i]) continue;
    bytes[i / 64 * 8 + i % 64 / 8] |= std::byte(1 << i % 8);
    changed.push_back(after[i]);
  }
  const size_t masks = bytes.size();
  bytes.resize(masks + changed.size() * 2);
  if (!changed.empty()) std::memcpy(&bytes[masks], changed.data(), changed.size() * 2);
  return bytes;
}

class Returns : public ::testing::TestWithParam<Isa> {
 protected:
  Random random_{31};
};

TEST_P(Returns, RoundToTheNearestOfTwo) {
  std::vector<float> values = any_values(random_, 100'003);
  const float max = std::numeric_limits<float>::max(), infinity = std::numeric_limits<float>::infinity();
  for (const float value : {0.0f, -0.0f, 1.0f, 1.0f + 0x1p-8f, 1.0f + 0x1p-7f + 0x1p-8f, 0x1p-133f, 0x1p-149f, max,
                            -max, infinity, -infinity, std::numeric_limits<float>::quiet_NaN()})
    values.push_back(value);
  std::vector<uint16_t> packed(values.size());
  round_to_bf16_with(GetParam(), values, packed.data());
  ASSERT_EQ(packed, rounded(values));
  std::vector<float> wide(values.size());
  widen_bf16_with(GetParam(), packed.data(), absl::MakeSpan(wide));
  for (size_t i = 0; i < wide.size(); ++i)
    ASSERT_EQ(std::bit_cast<uint32_t>(wide[i]), uint32_t{packed[i]} << 16) << values[i];
}

TEST_P(Returns, ADeltaHasTheChangedElementsAndGivesTheWholeOnes) {
  for (const size_t count : {1, 63, 64, 65, 127, 128, 1000, 4096, 5454}) {
    for (const double share : {0.0, 0.01, 0.3, 0.9, 0.95, 1.0}) {
      const std::vector<float> before = any_values(random_, count), others = any_values(random_, count);
      std::vector<float> after = before;
      for (size_t i = 0; i < count; ++i) {
        if (random_.uniform() < share) after[i] = others[i];
      }
      std::vector<uint16_t> held = rounded(before);
      const std::vector<std::byte> wanted = delta_of(held, rounded(after));
      std::vector<std::byte> packed(whole_return_bytes(count) + 64, kUntouched);
      std::vector<uint16_t> stamps(count, kFirst);
      stamp_changes_with(GetParam(), after, kSecond, held.data(), stamps.data());
      ASSERT_EQ(held, rounded(after)) << count << " " << share;
      const size_t bytes = pack_delta_with(GetParam(), held, stamps.data(), kFirst, packed.data());
      for (size_t i = whole_return_bytes(count); i < packed.size(); ++i) ASSERT_EQ(packed[i], kUntouched) << i;
      if (wanted.size() >= whole_return_bytes(count)) {
        ASSERT_EQ(bytes, 0u) << count << " " << share;
        continue;
      }
      ASSERT_EQ(bytes, wanted.size());
      packed.resize(bytes);
      ASSERT_EQ(packed, wanted) << count << " " << share;

      packed.resize(return_payload_at(0, 1, count));  // the place of a bucket
      std::vector<uint16_t> of_worker = rounded(before);
      std::vector<float> values(count, 7.0f);
      unpack_delta_with(GetParam(), packed.data(), of_worker.data(), absl::MakeSpan(values));
      ASSERT_EQ(of_worker, held);
      for (size_t i = 0; i < count; ++i)
        ASSERT_EQ(std::bit_cast<uint32_t>(values[i]), uint32_t{held[i]} << 16) << i << " of " << count;
    }
  }
}

TEST_P(Returns, ANewBitBelowTheUpperHalfIsNoChange) {
  std::vector<float> values(200, 1.0f);
  std::vector<uint16_t> held = rounded(values);
  for (float& value : values) value += 0x1p-12f;
  values[130] = 1.5f;
  std::vector<uint16_t> stamps(200);
  stamp_changes_with(GetParam(), values, 1, held.data(), stamps.data());
  std::vector<std::byte> packed(whole_return_bytes(200));
  EXPECT_EQ(pack_delta_with(GetParam(), held, stamps.data(), 0, packed.data()), mask_bytes(200) + 2);
}

/// A delta that spans several contents has the elements of each, with their latest values.
TEST_P(Returns, ADeltaHasAllElementsWithLaterStamps) {
  constexpr size_t kCount = 1000;
  std::vector<float> values = any_values(random_, kCount);
  std::vector<std::vector<uint16_t>> contents = {rounded(values)};
  std::vector<uint16_t> held = contents[0], stamps(kCount);
  std::vector<std::vector<bool>> changed = {std::vector<bool>(kCount)};
  constexpr uint16_t kContents = 20;
  for (uint16_t number = 1; number <= kContents; ++number) {
    std::vector<bool>& now = changed.emplace_back(kCount);
    for (int i = 0; i < 30; ++i) values[random_.below(kCount)] += 1.0f;
    stamp_changes_with(GetParam(), values, number, held.data(), stamps.data());
    contents.push_back(rounded(values));
    for (size_t i = 0; i < kCount; ++i) now[i] = contents[number][i] != contents[number - 1u][i];
  }
  for (uint16_t base = 0; base <= kContents; ++base) {
    std::vector<std::byte> packed(return_payload_at(0, 1, kCount) + kMaskBlock);
    const size_t bytes = pack_delta_with(GetParam(), held, stamps.data(), base, packed.data());
    size_t expected = 0;
    for (size_t i = 0; i < kCount; ++i) {
      bool is_later = false;
      for (size_t number = base + 1u; number <= kContents; ++number) is_later = is_later || changed[number][i];
      expected += is_later ? 1 : 0;
    }
    ASSERT_EQ(bytes, mask_bytes(kCount) + 2 * expected) << base;
    std::vector<uint16_t> of_worker = contents[base];
    std::vector<float> seen(kCount);
    unpack_delta_with(GetParam(), packed.data(), of_worker.data(), absl::MakeSpan(seen));
    ASSERT_EQ(of_worker, contents.back()) << base;
  }
}

/// The masks come from another process. None may lead out of the bucket.
TEST_P(Returns, AnyBytesWriteWithinTheBucket) {
  for (const size_t count : {1, 63, 65, 1000}) {
    const std::vector<std::byte> packed(return_payload_at(0, 1, count), std::byte{0xff});
    std::vector<uint16_t> held(count + 64, 3);
    std::vector<float> values(count + 64, 7.0f);
    unpack_delta_with(GetParam(), packed.data(), held.data(), {values.data(), count});
    for (size_t i = 0; i < count; ++i) ASSERT_EQ(held[i], 0xffff) << i;
    for (size_t i = count; i < held.size(); ++i) ASSERT_TRUE(held[i] == 3 && values[i] == 7.0f) << i;
  }
}

INSTANTIATE_TEST_SUITE_P(Every, Returns, ::testing::ValuesIn(supported_isas()),
                         [](const auto& each) { return std::string(isa_name(each.param)); });

}  // namespace
}  // namespace gradrail::ps
