// Gradients in int8 and int4, beside references in float64.
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "base/random.h"
#include "gtest/gtest.h"
#include "ps/optimizer/isa.h"
#include "ps/optimizer/optimizer.h"
#include "ps/protocol/push_format.h"
#include "tests/ps/optimizer/updated.h"

namespace gradrail::ps {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr PushFormat kFormats[] = {PushFormat::bf16, PushFormat::int8, PushFormat::int4};

struct Packed {
  std::vector<std::byte> bytes;
  std::vector<float> rest;
};

Packed packed(Isa isa, PushFormat format, const std::vector<float>& gradient, std::vector<float> rest = {}) {
  constexpr std::byte kPoison{0xa5};
  rest.resize(gradient.size());
  // Behind the last byte nothing may be written: the next bucket is there.
  const size_t size = packed_bytes(gradient.size(), format);
  Packed result{std::vector<std::byte>(size + 64, kPoison), std::move(rest)};
  pack_with(isa, format, gradient, result.rest.data(), result.bytes.data());
  for (size_t i = size; i < size + 64; ++i) EXPECT_EQ(result.bytes[i], kPoison) << push_format_name(format);
  result.bytes.resize(size);
  return result;
}

/// A packed bucket as apply() takes it.
const float* bucket(const void* packed) { return static_cast<const float*>(packed); }

std::vector<float> unpacked(Isa isa, PushFormat format, size_t count, const Packed& packed) {
  std::vector<float> result = updated(isa, OptimizerKind::mean, format, count, {bucket(packed.bytes.data())});
  result.resize(count);
  return result;
}

bool same_floats(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && (a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0);
}

/// Gradients of many kinds in blocks beside each other.
std::vector<float> mixed(size_t count, uint64_t seed) {
  Random random(seed);
  std::vector<float> values(count);
  for (size_t i = 0; i < count; ++i) {
    const auto normal = static_cast<float>(random.normal());
    switch (i / kScaleBlock % 6) {
      case 0:
        values[i] = normal;
        break;
      case 1:
        values[i] = 0.0f;
        break;
      case 2:
        values[i] = i % kScaleBlock == 5 ? 1e6f : normal * 1e-3f;
        break;
      case 3:
        values[i] = normal * 1e-41f;
        break;
      case 4:
        values[i] = std::clamp(normal, -3.0f, 3.0f) * 1e38f;
        break;
      default:
        values[i] = normal * 1e-6f;
    }
  }
  return values;
}

class Formats : public ::testing::TestWithParam<Isa> {};

/// The bound of pack().
TEST_P(Formats, CodesAreWithinHalfAStep) {
  for (const PushFormat format : {PushFormat::int8, PushFormat::int4}) {
    const double codes = format == PushFormat::int8 ? 127 : 7;
    for (const size_t count : {1, 2, 3, 63, 64, 65, 127, 128, 1000, 1024, 1025, 5000}) {
      SCOPED_TRACE(std::string(push_format_name(format)) + " " + std::to_string(count));
      const std::vector<float> gradient = mixed(count, count);
      const Packed result = packed(GetParam(), format, gradient);
      const std::vector<float> values = unpacked(GetParam(), format, count, result);
      for (size_t first = 0; first < count; first += kScaleBlock) {
        const size_t end = std::min(count, first + kScaleBlock);
        double largest = 0;
        for (size_t i = first; i < end; ++i) largest = std::max(largest, std::abs(double{gradient[i]}));
        const double step = largest < 0x1p-100 ? 0.0 : largest / codes * (1 + 0x1p-7);
        const double bound = largest < 0x1p-100 ? largest : step / 2 * (1 + 1e-6);
        for (size_t i = first; i < end; ++i) {
          ASSERT_LE(std::abs(double{values[i]} - double{gradient[i]}), bound) << i << ": " << gradient[i];
          // Nothing is lost but the rounding of the rest itself.
          const double sum = double{values[i]} + double{result.rest[i]};
          ASSERT_LE(std::abs(sum - double{gradient[i]}), std::abs(double{gradient[i]}) * 0x1p-23) << i;
        }
      }
    }
  }
}

TEST_P(Formats, NanAndInfinityKeepTheirPlaces) {
  for (const PushFormat format : kFormats) {
    for (const size_t count : {1, 7, 64, 65, 200}) {
      for (size_t at = 0; at < count; at += 5) {
        for (const float odd : {kInfinity, -kInfinity, kNan}) {
          std::vector<float> gradient(count);
          for (size_t i = 0; i < count; ++i) gradient[i] = static_cast<float>(i % 13) - 6.0f;
          gradient[at] = odd;
          const Packed result = packed(GetParam(), format, gradient);
          const std::vector<float> values = unpacked(GetParam(), format, count, result);
          for (size_t i = 0; i < count; ++i) {
            if (i == at) {
              ASSERT_EQ(result.rest[i], 0.0f);
              ASSERT_TRUE(std::isnan(odd) ? std::isnan(values[i]) : values[i] == odd) << values[i];
            } else {
              ASSERT_LE(std::abs(values[i] - gradient[i]), 0.51f) << push_format_name(format) << " " << i;
            }
          }
        }
      }
    }
  }
}

/// A value that rounds above the largest float becomes infinity, and leaves no rest.
TEST_P(Formats, TheLargestValuesLeaveNoNan) {
  const float max = std::numeric_limits<float>::max();
  for (const PushFormat format : kFormats) {
    const Packed result = packed(GetParam(), format, std::vector<float>{max, -max, 0.0f, 1.0f});
    for (const float rest : result.rest) EXPECT_TRUE(std::isfinite(rest)) << push_format_name(format);
    const std::vector<float> values = unpacked(GetParam(), format, 4, result);
    EXPECT_GE(values[0], max * 0.99f);
    EXPECT_EQ(values[1], -values[0]);
  }
}

/// Sync runs depend on it: hosts with different processors take part.
TEST_P(Formats, EveryInstructionSetGivesTheSameBits) {
  for (const PushFormat format : kFormats) {
    for (const size_t count : {1, 65, 1023, 4099}) {
      std::vector<float> gradient = mixed(count, 7 * count);
      if (count > 1000) gradient[900] = kNan;
      const Packed here = packed(GetParam(), format, gradient, mixed(count, count));
      const Packed there = packed(Isa::generic, format, gradient, mixed(count, count));
      ASSERT_EQ(here.bytes, there.bytes) << push_format_name(format) << " " << count;
      ASSERT_TRUE(same_floats(here.rest, there.rest));
      ASSERT_TRUE(same_floats(unpacked(GetParam(), format, count, here), unpacked(Isa::generic, format, count, there)));
    }
  }
}

TEST_P(Formats, AnUpdateGivesTheBitsOfTheUnpackedGradients) {
  for (const PushFormat format : kFormats) {
    for (const OptimizerKind kind : {OptimizerKind::sgd, OptimizerKind::nesterov, OptimizerKind::adam}) {
      for (const size_t gradient_count : {1, 2, 3, 16}) {
        for (const size_t count : {1, 63, 1024, 1100, 4099}) {
          std::vector<Packed> gradients;
          std::vector<std::vector<float>> wide;
          std::vector<const float*> packed_at, wide_at;
          for (size_t g = 0; g < gradient_count; ++g) {
            std::vector<float> gradient(count);
            Random random(g + 1);
            for (float& value : gradient) value = static_cast<float>(random.normal());
            // Blocks with infinity in some gradients only, beside others.
            if (g % 3 == 1) gradient[count / 2] = kInfinity;
            gradients.push_back(packed(GetParam(), format, gradient));
            wide.push_back(unpacked(GetParam(), format, count, gradients.back()));
          }
          for (size_t g = 0; g < gradient_count; ++g) {
            packed_at.push_back(bucket(gradients[g].bytes.data()));
            wide_at.push_back(wide[g].data());
          }
          ASSERT_TRUE(same_floats(updated(GetParam(), kind, format, count, packed_at),
                                  updated(GetParam(), kind, PushFormat::fp32, count, wide_at)))
              << push_format_name(format) << ", gradients: " << gradient_count << ", elements: " << count;
        }
      }
    }
  }
}

/// In all formats, for updates and for means of any number: the weighted sum of the unpacked gradients, in order.
TEST_P(Formats, WeightsAreSharesOfTheSum) {
  constexpr size_t kCount = 1100;
  for (const PushFormat format :
       {PushFormat(PushFormat::fp32), PushFormat(PushFormat::bf16), PushFormat(PushFormat::int8),
        PushFormat(PushFormat::int4), PushFormat(PushFormat::topk, 100)}) {
    for (const size_t gradient_count : {1, 2, 5, 16, 19}) {
      std::vector<std::vector<float>> gradients;
      std::vector<Packed> packs;
      std::vector<const float*> at;
      std::vector<float> weights;
      double total = 0.0;
      for (size_t g = 0; g < gradient_count; ++g) {
        std::vector<float>& gradient = gradients.emplace_back(kCount);
        Random random(g + 1);
        for (float& value : gradient) value = static_cast<float>(random.normal());
        if (format != PushFormat::fp32) {
          packs.push_back(packed(GetParam(), format, gradient));
          gradient = unpacked(GetParam(), format, kCount, packs.back());
        }
        total += weights.emplace_back(static_cast<float>(g % 3) + 0.3f);
      }
      for (size_t g = 0; g < gradient_count; ++g)
        at.push_back(format == PushFormat::fp32 ? gradients[g].data() : bucket(packs[g].bytes.data()));
      std::vector<float> expected(kCount);
      for (size_t g = 0; g < gradient_count; ++g) {
        const auto share = static_cast<float>(weights[g] / total);
        for (size_t i = 0; i < kCount; ++i) {
          const float part = share * gradients[g][i];
          expected[i] = g == 0 ? part : expected[i] + part;
        }
      }
      std::vector<float> mean(kCount);
      mean_of(at, weights, format, absl::MakeSpan(mean));
      ASSERT_TRUE(same_floats(mean, expected)) << push_format_name(format) << ", gradients: " << gradient_count;
      if (gradient_count > kMaxGradients) continue;
      std::vector<float> parameters(kCount);
      ApplyArguments arguments = {.count = kCount, .parameters = parameters.data()};
      arguments.gradients = at;
      arguments.weights = weights;
      arguments.format = format;
      apply_with(GetParam(), {.kind = OptimizerKind::mean}, arguments);
      ASSERT_TRUE(same_floats(parameters, expected)) << push_format_name(format) << ", gradients: " << gradient_count;
    }
  }
}

TEST_P(Formats, AnUpdateTellsWhetherItsParametersAreFinite) {
  constexpr size_t kCount = 1500;  // more than a strip, and a short block at the end
  for (const PushFormat format : std::vector<PushFormat>{PushFormat::fp32, PushFormat::bf16, PushFormat::int8,
                                                         PushFormat::int4, PushFormat{PushFormat::topk, 500}}) {
    for (int kind = 0; kind <= static_cast<int>(kLastOptimizer); ++kind) {
      for (const size_t place : {size_t{0}, size_t{63}, size_t{700}, kCount - 1}) {
        for (const float value : {1.0f, kNan, kInfinity, -kInfinity}) {
          for (const size_t gradient_count : {1, 2}) {
            std::vector<std::vector<float>> gradients(gradient_count, std::vector<float>(kCount, 0.25f));
            gradients.back()[place] = value;
            std::vector<Packed> packs;
            std::vector<const float*> at;
            if (format != PushFormat::fp32) {
              for (const auto& gradient : gradients) packs.push_back(packed(GetParam(), format, gradient));
            }
            for (size_t g = 0; g < gradient_count; ++g)
              at.push_back(format == PushFormat::fp32 ? gradients[g].data() : bucket(packs[g].bytes.data()));
            std::vector<float> parameters(kCount, 0.5f), m(kCount, 0.25f), v(kCount, 0.125f), target(kCount);
            float* const targets[] = {target.data()};
            const bool is_finite = apply_with(GetParam(), {.kind = static_cast<OptimizerKind>(kind)},
                                              {.count = kCount,
                                               .parameters = parameters.data(),
                                               .state = {m.data(), v.data()},
                                               .gradients = at,
                                               .format = format,
                                               .targets = absl::MakeSpan(targets).first(gradient_count - 1)});
            ASSERT_EQ(is_finite, value == 1.0f)
                << push_format_name(format) << ", optimizer " << kind << ", element " << place << ": " << value;
            ASSERT_EQ(first_non_finite(parameters), is_finite ? kCount : place);
          }
        }
      }
    }
  }
}

/// The sum of all pushes follows the sum of all gradients: what a push leaves out, a later one carries.
TEST_P(Formats, ErrorFeedbackLosesNothingOverManySteps) {
  constexpr size_t kCount = 130;
  constexpr int kSteps = 200;
  for (const PushFormat format : {PushFormat::int8, PushFormat::int4}) {
    std::vector<double> pushed(kCount), wanted(kCount);
    std::vector<float> rest;
    Random random(33);
    for (int step = 0; step < kSteps; ++step) {
      std::vector<float> gradient(kCount);
      for (size_t i = 0; i < kCount; ++i) {
        gradient[i] = static_cast<float>(random.normal() + (i == 3 ? 100.0 : 0.01));
        wanted[i] += double{gradient[i]};
      }
      Packed result = packed(GetParam(), format, gradient, std::move(rest));
      const std::vector<float> values = unpacked(GetParam(), format, kCount, result);
      for (size_t i = 0; i < kCount; ++i) pushed[i] += double{values[i]};
      rest = std::move(result.rest);
    }
    // Half a step of the block with the outlier, which the rest makes a little larger.
    for (size_t i = 0; i < kCount; ++i) EXPECT_NEAR(pushed[i], wanted[i], 120.0 / 7) << i;
    for (size_t i = 64; i < kCount; ++i) EXPECT_NEAR(pushed[i], wanted[i], 1.5) << i;
  }
}

TEST(MeanOf, MoreGradientsThanOnePassTakesAreSummedInOrder) {
  constexpr size_t kCount = 1500;
  for (const size_t gradient_count : {2, 17, 40}) {
    std::vector<std::vector<float>> gradients;
    std::vector<const float*> pointers;
    std::vector<float> expected(kCount);
    for (size_t g = 0; g < gradient_count; ++g) {
      gradients.push_back(mixed(kCount, g));
      for (float& value : gradients.back()) value = std::isfinite(value) ? std::fmod(value, 100.0f) : 0.0f;
      for (size_t i = 0; i < kCount; ++i) expected[i] = g == 0 ? gradients[0][i] : expected[i] + gradients[g][i];
    }
    for (const auto& gradient : gradients) pointers.push_back(gradient.data());
    for (float& value : expected) value *= 1.0f / static_cast<float>(gradient_count);
    std::vector<float> mean(kCount);
    mean_of(pointers, {}, PushFormat::fp32, absl::MakeSpan(mean));
    EXPECT_TRUE(same_floats(mean, expected)) << gradient_count;
  }
}

INSTANTIATE_TEST_SUITE_P(Every, Formats, ::testing::ValuesIn(supported_isas()),
                         [](const auto& each) { return std::string(isa_name(each.param)); });

}  // namespace
}  // namespace gradrail::ps
