// Gradients in topk, beside a selection by sorting.
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <functional>
#include <limits>
#include <numeric>
#include <string>
#include <vector>

#include "base/random.h"
#include "gtest/gtest.h"
#include "ps/optimizer/isa.h"
#include "ps/optimizer/optimizer.h"
#include "ps/protocol/push_format.h"
#include "tests/ps/optimizer/bf16.h"
#include "tests/ps/optimizer/updated.h"

namespace gradrail::ps {
namespace {

constexpr uint32_t kInfinityMagnitude = 0x7f800000;
constexpr float kTopkNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kTopkInfinity = std::numeric_limits<float>::infinity();

PushFormat topk(int thousandths) { return {PushFormat::topk, static_cast<uint16_t>(thousandths)}; }

struct Selection {
  std::vector<uint32_t> elements;
  std::vector<float> rest;
};

Selection selected_by(Isa isa, PushFormat format, const std::vector<float>& gradient, std::vector<float> rest) {
  constexpr uint32_t kPoison = 0xa5a5a5a5;
  const size_t size = packed_bytes(gradient.size(), format) / sizeof(uint32_t);
  rest.resize(gradient.size());
  Selection result{std::vector<uint32_t>(size + 16, kPoison), std::move(rest)};
  pack_with(isa, format, gradient, result.rest.data(), result.elements.data());
  // The next bucket begins there.
  for (size_t i = size; i < result.elements.size(); ++i) EXPECT_EQ(result.elements[i], kPoison);
  result.elements.resize(size);
  return result;
}

/// NaN has one magnitude, above that of infinity.
uint32_t magnitude_of(float value) {
  return std::min(std::bit_cast<uint32_t>(value) & 0x7fffffff, kInfinityMagnitude + 1);
}

/// The definition: sorts each chunk by magnitude, and by index where magnitudes are equal.
Selection selected_by_sorting(PushFormat format, const std::vector<float>& gradient, const std::vector<float>& rest) {
  Selection result{{}, std::vector<float>(gradient.size())};
  for (size_t i = 0; i < gradient.size(); ++i) result.rest[i] = gradient[i] + (i < rest.size() ? rest[i] : 0.0f);
  for (size_t first = 0; first < gradient.size(); first += kTopkChunk) {
    const size_t count = std::min(gradient.size() - first, kTopkChunk);
    std::vector<uint32_t> order(count);
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(), [&](uint32_t a, uint32_t b) {
      return magnitude_of(result.rest[first + a]) > magnitude_of(result.rest[first + b]);
    });
    order.resize(static_cast<size_t>(std::ceil(static_cast<double>(count) * format.thousandths / 1000.0)));
    std::sort(order.begin(), order.end());
    for (const uint32_t index : order) {
      float& value = result.rest[first + index];
      const uint16_t rounded = nearest(value);
      result.elements.push_back(index << 16 | rounded);
      const float sent = widened(rounded);
      value = std::isfinite(sent) ? value - sent : 0.0f;
    }
  }
  return result;
}

/// All NaN are equal: a test has no rest with other bits.
std::vector<uint32_t> bits_with_one_nan(const std::vector<float>& values) {
  std::vector<uint32_t> bits;
  for (const float value : values) bits.push_back(std::isnan(value) ? 0x7fc00000 : std::bit_cast<uint32_t>(value));
  return bits;
}

std::vector<float> filled(size_t count, const std::function<float(size_t)>& value) {
  std::vector<float> values(count);
  for (size_t i = 0; i < count; ++i) values[i] = value(i);
  return values;
}

class Topk : public ::testing::TestWithParam<Isa> {
 protected:
  void expect_as_sorted(PushFormat format, const std::vector<float>& gradient, const std::vector<float>& rest) {
    const Selection wanted = selected_by_sorting(format, gradient, rest);
    const Selection found = selected_by(GetParam(), format, gradient, rest);
    EXPECT_EQ(found.elements, wanted.elements);
    EXPECT_EQ(bits_with_one_nan(found.rest), bits_with_one_nan(wanted.rest));
  }

  Random random_{71};
};

TEST_P(Topk, TheLargestElementsOfEachChunkAreSelected) {
  const std::vector<std::pair<const char*, std::function<float(size_t)>>> kinds = {
      {"normal", [&](size_t) { return static_cast<float>(random_.normal()); }},
      {"any bits", [&](size_t) { return std::bit_cast<float>(static_cast<uint32_t>(random_.next())); }},
      {"few values", [&](size_t) { return static_cast<float>(random_.next() % 3) - 1.0f; }},
      // Equal upper halves, so that the lower ones decide.
      {"near one", [&](size_t) { return 1.0f + 0x1p-23f * static_cast<float>(random_.next() % 1000); }},
      {"near one, signs",
       [&](size_t) { return (1.0f + 0x1p-23f * (random_.next() % 65536)) * (random_.next() % 2 ? 1 : -1); }},
      {"equal", [](size_t) { return -0.25f; }},
      {"zero", [](size_t i) { return i % 2 == 0 ? 0.0f : -0.0f; }},
      {"small", [&](size_t) { return 1e-41f * static_cast<float>(random_.normal()); }},
      {"one large", [](size_t i) { return i == 700 ? 1e30f : 1e-30f; }},
      {"ascending", [](size_t i) { return static_cast<float>(i); }},
      {"descending", [](size_t i) { return -1.0f / static_cast<float>(i + 1); }},
      {"few others", [](size_t i) { return i % 500 == 7 ? 2.0f : 0.0f; }},
      {"with infinity", [&](size_t i) { return i % 97 == 3 ? -kTopkInfinity : static_cast<float>(random_.normal()); }},
      {"with NaN", [&](size_t i) { return i % 1013 == 11 ? kTopkNan
                                          : i % 211 == 0 ? kTopkInfinity
                                                         : 1.0f; }}};
  for (const int thousandths : {1, 5, 10, 33, 100, 250}) {
    for (const size_t count : {1, 2, 15, 16, 63, 1000, 4095, 4096, 4097, 9001}) {
      for (const auto& [name, value] : kinds) {
        SCOPED_TRACE(push_format_name(topk(thousandths)) + ", " + std::to_string(count) + ", " + name);
        const std::vector<float> gradient = filled(count, value);
        expect_as_sorted(topk(thousandths), gradient, {});
        expect_as_sorted(topk(thousandths), gradient, filled(count, kinds[0].second));
        if (HasFailure()) return;
      }
    }
  }
}

TEST_P(Topk, NanAndInfinityTravelFirstAndAtLastAll) {
  constexpr size_t kCount = 1000;  // 10 elements of a push
  std::vector<float> rest;
  std::vector<float> arrived(kCount);
  for (int push = 0; push < 3; ++push) {
    const std::vector<float> gradient = filled(kCount, [&](size_t i) {
      if (push > 0 || i % 40 != 9) return 1e38f;
      return i % 80 == 9 ? kTopkNan : -kTopkInfinity;
    });
    Selection selection = selected_by(GetParam(), topk(10), gradient, std::move(rest));
    ASSERT_EQ(selection.elements.size(), 10u);
    for (const uint32_t element : selection.elements) arrived[element >> 16] = widened(element & 0xffff);
    rest = std::move(selection.rest);
    const auto nans = std::count_if(arrived.begin(), arrived.end(), [](float value) { return std::isnan(value); });
    EXPECT_EQ(nans, push == 0 ? 10 : 13) << "NaN is before infinity";
  }
  for (size_t i = 9; i < kCount; i += 40) {
    EXPECT_FALSE(std::isfinite(arrived[i])) << i;
    EXPECT_TRUE(std::isfinite(rest[i])) << i;
  }
}

/// Sync runs depend on it. In a sum, instruction sets may choose other bits of a NaN.
TEST_P(Topk, EveryInstructionSetLeavesTheSameRest) {
  std::vector<float> gradient = filled(9001, [&](size_t) { return static_cast<float>(random_.normal()); });
  std::vector<float> rest = gradient;
  for (size_t i = 0; i < 500; ++i) gradient[i] = std::bit_cast<float>(0x7fc00001u + static_cast<uint32_t>(i));
  for (size_t i = 250; i < 750; ++i) rest[i] = std::bit_cast<float>(0xffc12345u);
  const Selection here = selected_by(GetParam(), topk(10), gradient, rest);
  const Selection there = selected_by(Isa::generic, topk(10), gradient, rest);
  EXPECT_EQ(here.elements, there.elements);
  EXPECT_EQ(std::memcmp(here.rest.data(), there.rest.data(), here.rest.size() * sizeof(float)), 0);
}

/// The gradient that a shard sees. An index behind the chunk is ignored.
std::vector<float> decoded(PushFormat format, size_t count, const std::vector<uint32_t>& elements) {
  std::vector<float> values(count);
  size_t next = 0;
  for (size_t first = 0; first < count; first += kTopkChunk) {
    const size_t in_chunk = std::min(count - first, kTopkChunk);
    for (size_t i = 0; i < kept_in_chunk(in_chunk, format); ++i, ++next) {
      const size_t index = elements[next] >> 16;
      if (index < in_chunk) values[first + index] += widened(elements[next] & 0xffff);
    }
  }
  EXPECT_EQ(next, elements.size());
  return values;
}

void expect_updates_as_in_fp32(Isa isa, PushFormat format, size_t count,
                               const std::vector<std::vector<uint32_t>>& pushes) {
  std::vector<std::vector<float>> wide;
  std::vector<const float*> packed_at, wide_at;
  for (const auto& push : pushes) {
    wide.push_back(decoded(format, count, push));
    packed_at.push_back(reinterpret_cast<const float*>(push.data()));
  }
  for (const auto& values : wide) wide_at.push_back(values.data());
  for (const OptimizerKind kind : {OptimizerKind::sgd, OptimizerKind::nesterov, OptimizerKind::adam}) {
    EXPECT_EQ(bits_with_one_nan(updated(isa, kind, format, count, packed_at)),
              bits_with_one_nan(updated(isa, kind, PushFormat::fp32, count, wide_at)))
        << push_format_name(format) << ", gradients: " << pushes.size() << ", elements: " << count;
  }
  std::vector<float> mean(count), wide_mean(count);
  mean_of(packed_at, {}, format, absl::MakeSpan(mean));
  mean_of(wide_at, {}, PushFormat::fp32, absl::MakeSpan(wide_mean));
  EXPECT_EQ(bits_with_one_nan(mean), bits_with_one_nan(wide_mean));
}

TEST_P(Topk, AnUpdateGivesTheBitsOfTheUnpackedGradients) {
  for (const int thousandths : {1, 10, 250}) {
    for (const size_t gradient_count : {1, 2, 3, 16}) {
      for (const size_t count : {1, 63, 1100, 4096, 4100, 12288}) {
        std::vector<std::vector<uint32_t>> pushes;
        for (size_t g = 0; g < gradient_count; ++g) {
          std::vector<float> gradient = filled(count, [&](size_t) { return static_cast<float>(random_.normal()); });
          if (g % 3 == 1) gradient[count / 2] = kTopkInfinity;
          pushes.push_back(selected_by(GetParam(), topk(thousandths), gradient, {}).elements);
        }
        expect_updates_as_in_fp32(GetParam(), topk(thousandths), count, pushes);
      }
    }
  }
}

/// A damaged push changes elements of its chunk only. Indexes may be too large, equal, or in any order.
TEST_P(Topk, DamagedIndexesStayInTheirChunk) {
  for (const size_t count : {1, 100, 4096, 4097, 8191, 8200}) {
    for (int round = 0; round < 20; ++round) {
      std::vector<std::vector<uint32_t>> pushes(3);
      for (auto& push : pushes) {
        push.resize(packed_bytes(count, topk(50)) / sizeof(uint32_t));
        // Indexes to 65,535, or around the end of the chunk.
        for (uint32_t& element : push) {
          const auto index = static_cast<uint32_t>(random_.next() % (round % 2 == 0 ? 65536 : count % kTopkChunk + 3));
          element = index << 16 | nearest(static_cast<float>(random_.normal()));
        }
      }
      expect_updates_as_in_fp32(GetParam(), topk(50), count, pushes);
    }
  }
}

/// The sum of all pushes follows the sum of all gradients: what a push leaves out, a later one carries.
TEST_P(Topk, ErrorFeedbackLosesNothing) {
  constexpr size_t kCount = 5000;
  constexpr int kSteps = 300;
  std::vector<double> pushed(kCount), wanted(kCount);
  std::vector<float> rest;
  for (int step = 0; step < kSteps; ++step) {
    const std::vector<float> gradient =
        filled(kCount, [&](size_t i) { return static_cast<float>(random_.normal() + (i == 3 ? 50.0 : 0.01)); });
    Selection selection = selected_by(GetParam(), topk(20), gradient, std::move(rest));
    const std::vector<float> values = decoded(topk(20), kCount, selection.elements);
    rest = std::move(selection.rest);
    for (size_t i = 0; i < kCount; ++i) {
      wanted[i] += double{gradient[i]};
      pushed[i] += double{values[i]};
    }
  }
  double largest = 0;
  for (size_t i = 0; i < kCount; ++i) {
    ASSERT_NEAR(pushed[i] + double{rest[i]}, wanted[i], 1e-2) << i;
    largest = std::max(largest, std::abs(double{rest[i]}));
  }
  // Each element leaves after 50 pushes or so, with what has come together in them.
  EXPECT_LT(largest, 30.0);
}

INSTANTIATE_TEST_SUITE_P(Every, Topk, ::testing::ValuesIn(supported_isas()),
                         [](const auto& each) { return std::string(isa_name(each.param)); });

}  // namespace
}  // namespace gradrail::ps
