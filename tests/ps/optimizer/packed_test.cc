// Gradients in bf16: packed by a worker, and taken by the update.
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "base/random.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "ps/optimizer/isa.h"
#include "ps/optimizer/optimizer.h"
#include "tests/ps/optimizer/bf16.h"
#include "tests/ps/optimizer/updated.h"

namespace gradrail::ps {
namespace {

class PackedGradients : public ::testing::TestWithParam<Isa> {};

TEST_P(PackedGradients, RoundToTheNearestAndKeepTheRest) {
  Random random(21);
  std::vector<float> gradient;
  for (int i = 0; i < 100'003; ++i) gradient.push_back(std::bit_cast<float>(static_cast<uint32_t>(random.next())));
  const float max = std::numeric_limits<float>::max();
  const float ties[] = {1.0f + 0x1p-8f, 1.0f + 0x1p-7f + 0x1p-8f};
  gradient.insert(gradient.end(), std::begin(ties), std::end(ties));
  for (const float value : {0.0f, -0.0f, 1.0f, 0x1p-133f, 0x1p-149f, max, -max}) gradient.push_back(value);
  std::vector<float> rest(gradient.size(), 0.0f);
  std::vector<uint16_t> packed(gradient.size());
  pack_with(GetParam(), PushFormat::bf16, gradient, rest.data(), packed.data());
  for (size_t i = 0; i < gradient.size(); ++i) {
    if (std::isnan(gradient[i])) {
      ASSERT_EQ(packed[i], 0x7fc0) << i;
      ASSERT_EQ(rest[i], 0.0f) << i;
      continue;
    }
    ASSERT_EQ(packed[i], nearest(gradient[i] + 0.0f)) << gradient[i];  // -0 plus a rest of 0 is 0
    if (std::isinf(widened(packed[i]))) {
      ASSERT_EQ(rest[i], 0.0f) << gradient[i];
    } else {
      ASSERT_EQ(widened(packed[i]) + rest[i], gradient[i]) << gradient[i];
    }
  }
}

TEST_P(PackedGradients, TheRestIsAddedToTheNextGradient) {
  const std::vector<float> gradient = {0x1p-9f, 1.0f, std::numeric_limits<float>::infinity()};
  std::vector<float> rest = {1.0f, 0x1p-9f, 1.0f};
  std::vector<uint16_t> packed(3);
  pack_with(GetParam(), PushFormat::bf16, gradient, rest.data(), packed.data());
  EXPECT_EQ(widened(packed[0]), 1.0f);
  EXPECT_EQ(widened(packed[1]), 1.0f);
  EXPECT_THAT(rest, ::testing::ElementsAre(0x1p-9f, 0x1p-9f, 0.0f));
}

TEST_P(PackedGradients, AnUpdateGivesTheBitsOfTheWidenedGradients) {
  Random random(22);
  for (const OptimizerKind kind : {OptimizerKind::sgd, OptimizerKind::adam, OptimizerKind::mean}) {
    for (const size_t gradient_count : {1, 2, 3, 4, 16}) {
      for (const size_t count : {1, 17, 1024, 4099}) {
        std::vector<std::vector<uint16_t>> packed(gradient_count, std::vector<uint16_t>(count + 1));
        std::vector<std::vector<float>> wide(gradient_count);
        std::vector<const float*> packed_at, wide_at;
        for (size_t g = 0; g < gradient_count; ++g) {
          // From the second element on: a run need not begin at a boundary of 4 bytes.
          for (size_t i = 1; i <= count; ++i) {
            packed[g][i] = nearest(static_cast<float>(random.normal()));
            wide[g].push_back(widened(packed[g][i]));
          }
          packed_at.push_back(reinterpret_cast<const float*>(packed[g].data() + 1));
          wide_at.push_back(wide[g].data());
        }
        ASSERT_EQ(updated(GetParam(), kind, PushFormat::bf16, count, packed_at),
                  updated(GetParam(), kind, PushFormat::fp32, count, wide_at))
            << gradient_count << " " << count;
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Every, PackedGradients, ::testing::ValuesIn(supported_isas()),
                         [](const auto& each) { return std::string(isa_name(each.param)); });

}  // namespace
}  // namespace gradrail::ps
