// The sums of groups: their order, their bits and their divisor.
#include "ps/optimizer/group_sum.h"

#include <cstring>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "ps/optimizer/optimizer.h"
#include "ps/optimizer/returns.h"
#include "ps/protocol/push_format.h"

namespace gradrail::ps {
namespace {

constexpr size_t kElements = 1000;

std::vector<float> thirds(uint32_t worker) {
  std::vector<float> values;
  for (size_t i = 0; i < kElements; ++i) values.push_back(static_cast<float>(worker * 7 + i) / 3.0f);
  return values;
}

struct GroupSumTest : testing::Test {
  GroupSumTest() {
    for (uint32_t worker = 0; worker < 5; ++worker) gradients.push_back(thirds(worker));
  }
  GradientTerm term(uint32_t worker) const { return {worker, gradients[worker].data()}; }
  std::vector<float> first_group() const {
    std::vector<float> sum(kElements);
    const std::vector<const float*> group = {gradients[0].data(), gradients[1].data()};
    sum_of(group, PushFormat::fp32, absl::MakeSpan(sum));
    return sum;
  }
  std::vector<std::vector<float>> gradients;
  GroupSum groups;
};

std::vector<float> copy_of(const float* values) { return {values, values + kElements}; }

TEST_F(GroupSumTest, EachGroupIsSummedFirst) {
  const std::vector<GradientTerm> terms = {term(0), term(1), term(2), term(3), term(4)};
  const auto sums = groups.sum(terms, 2, PushFormat::fp32, kElements);
  ASSERT_EQ(sums.size(), 3u);
  for (size_t i = 0; i < kElements; ++i) {
    ASSERT_EQ(sums[0][i], gradients[0][i] + gradients[1][i]);
    ASSERT_EQ(sums[1][i], gradients[2][i] + gradients[3][i]);
  }
  EXPECT_EQ(sums[2], gradients[4].data()) << "a lone gradient is not copied";
  // The order of additions is another one than without groups.
  std::vector<const float*> flat;
  for (const auto& each : gradients) flat.push_back(each.data());
  std::vector<float> with(kElements), without(kElements);
  mean_of(sums, {}, PushFormat::fp32, absl::MakeSpan(with), 5);
  mean_of(flat, {}, PushFormat::fp32, absl::MakeSpan(without));
  EXPECT_NE(with, without);
  for (size_t i = 0; i < kElements; ++i) ASSERT_FLOAT_EQ(with[i], without[i]);
}

TEST_F(GroupSumTest, ASumOfAnAggregatorHasTheBitsOfItsGroup) {
  const std::vector<float> sum = first_group();
  const std::vector<GradientTerm> tree = {{0, sum.data(), true}, term(2), term(3)};
  const auto sums = groups.sum(tree, 2, PushFormat::fp32, kElements);
  ASSERT_EQ(sums.size(), 2u);
  EXPECT_EQ(sums[0], sum.data());
  GroupSum others;
  const std::vector<GradientTerm> flat = {term(0), term(1), term(2), term(3)};
  const auto expected = others.sum(flat, 2, PushFormat::fp32, kElements);
  EXPECT_EQ(copy_of(sums[0]), copy_of(expected[0]));
  EXPECT_EQ(copy_of(sums[1]), copy_of(expected[1]));
}

TEST_F(GroupSumTest, ASumAndSingleGradientsOfOneGroupAreSeveralTerms) {
  const std::vector<float> sum = first_group();
  const std::vector<GradientTerm> mixed = {{0, sum.data(), true}, term(2), term(3)};
  EXPECT_EQ(groups.sum(mixed, 4, PushFormat::fp32, kElements).size(), 2u);
}

float value_of_sum(const float* sums, size_t i) {
  float value = 0.0f;
  widen_bf16(reinterpret_cast<const uint16_t*>(sums) + i, absl::MakeSpan(&value, 1));
  return value;
}

TEST_F(GroupSumTest, PackedGradientsAreDecoded) {
  std::vector<std::vector<uint16_t>> packed(2, std::vector<uint16_t>(kElements));
  std::vector<GradientTerm> terms;
  for (uint32_t worker = 0; worker < 2; ++worker) {
    std::vector<float> rest(kElements);
    pack(PushFormat::bf16, gradients[worker], rest.data(), packed[worker].data());
    terms.push_back({worker * 2, reinterpret_cast<const float*>(packed[worker].data())});
  }
  const auto sums = groups.sum(terms, 2, PushFormat::bf16, kElements);
  ASSERT_EQ(sums.size(), 2u);
  EXPECT_EQ(sums[1], terms[1].values) << "a lone gradient is not copied";
  for (size_t i = 0; i < kElements; ++i) ASSERT_NEAR(value_of_sum(sums[1], i), gradients[1][i], 1.0f);
}

TEST_F(GroupSumTest, SumsOfPackedGradientsAreRoundedToBf16Once) {
  for (const PushFormat format : {PushFormat::bf16, PushFormat::int8, PushFormat::int4}) {
    SCOPED_TRACE(push_format_name(format));
    std::vector<std::vector<float>> packed;
    std::vector<const float*> group;
    std::vector<GradientTerm> terms;
    for (uint32_t worker = 0; worker < 3; ++worker) {
      std::vector<float> rest(kElements);
      pack(format, gradients[worker], rest.data(), packed.emplace_back(kElements).data());
      group.push_back(packed.back().data());
      terms.push_back({worker, group.back()});
    }
    std::vector<float> exact(kElements);
    sum_of(group, format, absl::MakeSpan(exact));
    const auto sums = groups.sum(terms, 4, format, kElements);
    ASSERT_EQ(sums.size(), 1u);
    for (size_t i = 0; i < kElements; ++i) {
      uint16_t rounded = 0;
      round_to_bf16(absl::MakeConstSpan(&exact[i], 1), &rounded);
      ASSERT_EQ(reinterpret_cast<const uint16_t*>(sums[0])[i], rounded) << i;
      ASSERT_NEAR(value_of_sum(sums[0], i), exact[i], exact[i] / 256);
    }
    // An aggregator makes the same bits.
    std::vector<float> scratch;
    std::vector<float> sum(kElements);
    write_group_sum(group, format, kElements, scratch, sum.data());
    EXPECT_EQ(std::memcmp(sum.data(), sums[0], packed_bytes(kElements, sum_format(format))), 0);
  }
}

}  // namespace
}  // namespace gradrail::ps
