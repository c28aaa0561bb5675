#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <tuple>

#include "base/crc32c.h"
#include "gpu/direct/staged_copies.h"
#include "gtest/gtest.h"
#include "ps/optimizer/optimizer.h"
#include "ps/protocol/push_format.h"
#include "ps/store/gpu_format.h"
#include "tests/gpu/compute_test_bed.h"

// Products, layers, casts, checksums: each against the definition in double.

namespace gradrail::gpu {
namespace {

constexpr size_t kCounts[] = {1, 2, 3, 4, 5, 31, 1000, 4099};
constexpr double kTolerance = 1e-5;

class ComputeLayers : public ComputeTest {};
INSTANTIATE_TEST_SUITE_P(On, ComputeLayers, kComputes, compute_name);

class ComputeVectors : public ComputeTest {};
INSTANTIATE_TEST_SUITE_P(On, ComputeVectors, kComputes, compute_name);

class ComputeCrc32c : public ComputeTest {};
INSTANTIATE_TEST_SUITE_P(On, ComputeCrc32c, kComputes, compute_name);

double activate(Activation f, double x) {
  if (f == Activation::sigmoid) return 1.0 / (1.0 + std::exp(-x));
  return f == Activation::relu ? std::max(x, 0.0) : x;
}

/// Element [i, j] of a matrix that lies the other way round when `transposed`.
double at(const std::vector<float>& matrix, size_t rows, size_t columns, bool transposed, size_t i, size_t j) {
  return matrix[transposed ? j * rows + i : i * columns + j];
}

void check_product(Bed& bed, const ProductShape& shape, bool accumulate, size_t offset) {
  SCOPED_TRACE(::testing::Message() << shape.m << "x" << shape.k << "x" << shape.n << " transposed "
                                    << shape.transposed_a << shape.transposed_b << " accumulate " << accumulate);
  const std::vector<float> a = bed.normal(shape.m * shape.k);
  const std::vector<float> b = bed.normal(shape.k * shape.n);
  const std::vector<float> before = bed.normal(shape.m * shape.n);
  std::vector<double> expected(before.size());
  for (size_t i = 0; i < shape.m; ++i) {
    for (size_t j = 0; j < shape.n; ++j) {
      double sum = accumulate ? before[i * shape.n + j] : 0.0;
      for (size_t l = 0; l < shape.k; ++l) {
        sum += at(a, shape.m, shape.k, shape.transposed_a, i, l) * at(b, shape.k, shape.n, shape.transposed_b, l, j);
      }
      expected[i * shape.n + j] = sum;
    }
  }
  const auto device_a = bed.make(a, offset);
  const auto device_b = bed.make(b, 2 * offset);
  const auto c = accumulate ? bed.make(before, offset) : bed.poisoned<float>(before.size(), offset);
  bed.compute().product(shape, device_a.data(), device_b.data(), c.data(), accumulate);
  expect_near(bed.read(c), expected, kTolerance * std::sqrt(static_cast<double>(shape.k)));
}

TEST_P(ComputeLayers, ProductsInEveryOrientation) {
  const ProductShape sizes[] = {{1, 1, 1}, {3, 5, 7}, {17, 1, 9}, {1, 33, 1}, {20, 100, 31}, {3, 0, 5}};
  for (ProductShape shape : sizes) {
    for (const int orientation : {0, 1, 2, 3}) {
      shape.transposed_a = (orientation & 1) != 0;
      shape.transposed_b = (orientation & 2) != 0;
      for (const bool accumulate : {false, true}) check_product(bed(), shape, accumulate, shape.m % 4);
    }
  }
}

TEST_P(ComputeLayers, BiasAndActivation) {
  const std::pair<size_t, size_t> shapes[] = {{1, 1}, {3, 10}, {7, 33}, {16, 32}, {5, 1024}, {2, 6}};
  for (const auto& [rows, columns] : shapes) {
    for (const Activation f : {Activation::none, Activation::sigmoid, Activation::relu}) {
      for (const size_t offset : {0, 1, 4}) {
        const std::vector<float> x = bed().normal(rows * columns);
        const std::vector<float> bias = bed().normal(columns);
        std::vector<double> expected(x.size());
        for (size_t i = 0; i < x.size(); ++i) {
          expected[i] = activate(f, static_cast<double>(x[i]) + bias[i % columns]);
        }
        const auto device_x = bed().make(x, offset);
        const auto device_bias = bed().make(bias, 4 * offset);
        compute().bias_activation(rows, columns, device_bias.data(), f, device_x.data());
        expect_near(bed().read(device_x), expected, kTolerance);
      }
    }
  }
}

TEST_P(ComputeLayers, ActivationsSurviveExtremesAndShowNaN) {
  const float infinity = std::numeric_limits<float>::infinity();
  const std::vector<float> x = {-infinity, -1000.0f, 1000.0f, infinity, std::nanf("")};
  const auto bias = bed().make(std::vector<float>(x.size(), 0.0f));
  for (const Activation f : {Activation::sigmoid, Activation::relu}) {
    std::vector<double> expected = {0, 0, 1, 1, NAN};
    const auto y = bed().make(x);
    compute().bias_activation(1, x.size(), bias.data(), f, y.data());
    std::vector<float> result = bed().read(y);
    if (f == Activation::relu) {
      EXPECT_EQ(result[3], infinity);
      expected[2] = 1000;
      result[3] = 1;
    }
    expect_near(result, expected, kTolerance);
  }
}

TEST_P(ComputeLayers, StepBackThroughActivation) {
  for (const size_t count : kCounts) {
    for (const Activation f : {Activation::none, Activation::sigmoid, Activation::relu}) {
      for (const size_t offset : {0, 1, 3}) {
        const std::vector<float> y = f == Activation::sigmoid ? bed().positive(count) : bed().normal(count);
        const std::vector<float> gradient = bed().normal(count);
        std::vector<double> expected(count);
        for (size_t i = 0; i < count; ++i) {
          const double slope = f == Activation::sigmoid ? y[i] * (1.0 - y[i]) : f == Activation::relu ? y[i] > 0 : 1;
          expected[i] = gradient[i] * slope;
        }
        const auto device_y = bed().make(y, offset);
        // The same distance from a boundary, and another one.
        const auto device_gradient = bed().make(gradient, count % 2 == 0 ? offset : offset + 1);
        compute().activation_backward(count, f, device_y.data(), device_gradient.data());
        expect_near(bed().read(device_gradient), expected, kTolerance);
      }
    }
  }
}

TEST_P(ComputeLayers, ColumnSums) {
  const std::pair<size_t, size_t> shapes[] = {{1, 1}, {100, 3}, {33, 32}, {1, 100}, {400, 17}, {0, 5}};
  for (const auto& [rows, columns] : shapes) {
    const std::vector<float> x = bed().normal(rows * columns);
    std::vector<double> expected(columns);
    for (size_t i = 0; i < x.size(); ++i) expected[i % columns] += x[i];
    const auto device_x = bed().make(x, 1);
    const auto sums = bed().poisoned<float>(columns, 3);
    compute().column_sums(rows, columns, device_x.data(), sums.data());
    expect_near(bed().read(sums), expected, kTolerance * std::sqrt(static_cast<double>(rows)));
  }
}

/// Costs and gradient of the mean cost, in double.
std::pair<std::vector<double>, std::vector<double>> softmax_reference(const std::vector<float>& logits,
                                                                      const std::vector<uint8_t>& labels) {
  const size_t rows = labels.size();
  const size_t columns = logits.size() / rows;
  std::vector<double> costs(rows), gradient(logits.size());
  for (size_t i = 0; i < rows; ++i) {
    const float* row = logits.data() + i * columns;
    const double largest = *std::max_element(row, row + columns);
    double total = 0.0;
    for (size_t j = 0; j < columns; ++j) total += std::exp(row[j] - largest);
    costs[i] = std::log(total) - (row[labels[i]] - largest);
    for (size_t j = 0; j < columns; ++j) {
      const double share = std::exp(row[j] - largest) / total;
      gradient[i * columns + j] = (share - (j == labels[i] ? 1.0 : 0.0)) / static_cast<double>(rows);
    }
  }
  return {costs, gradient};
}

TEST_P(ComputeLayers, SoftmaxCrossEntropy) {
  const std::pair<size_t, size_t> shapes[] = {{1, 1}, {1, 10}, {100, 10}, {37, 3}, {300, 256}};
  for (const auto& [rows, columns] : shapes) {
    for (const float scale : {1.0f, 300.0f}) {  // large ones overflow where the largest is not taken away first
      std::vector<float> logits = bed().normal(rows * columns);
      for (float& logit : logits) logit *= scale;
      std::vector<uint8_t> labels(rows);
      for (uint8_t& label : labels) label = static_cast<uint8_t>(bed().random().below(columns));
      const auto [costs, gradient] = softmax_reference(logits, labels);
      const auto device_logits = bed().make(logits, 1);
      const auto device_labels = bed().make(labels, 3);
      const auto device_costs = bed().poisoned<float>(rows, 2);
      compute().softmax_cross_entropy(rows, columns, device_labels.data(), device_logits.data(), device_costs.data());
      expect_near(bed().read(device_costs), costs, kTolerance);
      expect_near(bed().read(device_logits), gradient, kTolerance / static_cast<double>(rows));
    }
  }
}

TEST_P(ComputeVectors, SumsInOrder) {
  for (const size_t count : kCounts) {
    for (const size_t sources : {1, 2, 3, 5, 16}) {
      for (const size_t offset : {0, 1, 2}) {
        std::vector<Bed::Array<float>> arrays;
        std::vector<const float*> addresses;
        std::vector<double> expected(count);
        std::vector<float> in_order;
        for (size_t s = 0; s < sources; ++s) {
          const std::vector<float> values = bed().normal(count);
          for (size_t i = 0; i < count; ++i) expected[i] += values[i];
          if (s == 0) in_order = values;
          for (size_t i = 0; s > 0 && i < count; ++i) in_order[i] += values[i];
          // With offset 2 the buffers never come to a common boundary.
          arrays.push_back(bed().make(values, offset < 2 ? offset : s % 4));
          addresses.push_back(arrays.back().data());
        }
        for (double& value : expected) value *= 0.125;
        for (float& value : in_order) value *= 0.125f;
        const auto target = bed().poisoned<float>(count, offset);
        compute().sum(addresses, count, 0.125f, target.data());
        expect_near(bed().read(target), expected, kTolerance);
        expect_same_bits(bed().read(target), in_order);
        compute().sum(addresses, count, 0.125f, arrays[0].data());  // target may be the first source
        expect_same_bits(bed().read(arrays[0]), in_order);
      }
    }
  }
}

/// Rounds to 8 bits of mantissa in double, to nearest, ties to even.
uint16_t bf16_reference(float value) {
  if (std::isnan(value)) return 0x7fc0;
  const auto low = static_cast<uint16_t>(std::bit_cast<uint32_t>(value) >> 16);
  const auto widened = [](uint32_t bits) {
    // One past the largest finite number stands for 2^128 in this comparison.
    if ((bits & 0x7fff) == 0x7f80) return std::ldexp((bits & 0x8000) != 0 ? -1.0 : 1.0, 128);
    return static_cast<double>(std::bit_cast<float>(bits << 16));
  };
  const double below = std::abs(value - widened(low));
  const double above = std::abs(widened(low + 1u) - value);
  if (std::isinf(value) || below < above) return low;
  return below > above ? static_cast<uint16_t>(low + 1) : static_cast<uint16_t>(low + (low & 1));
}

std::vector<float> numbers_to_round(Bed& bed, size_t count) {
  const uint32_t special[] = {0x00000000, 0x80000000, 0x7f800000, 0xff800000, 0x7f800001, 0x7fffffff,
                              0xffc00000, 0x7f7fffff, 0xff7fffff, 0x3f808000, 0x3f818000, 0x3f807fff,
                              0x3f808001, 0x00000001, 0x00008000, 0x00018000, 0x807fffff, 0x7f7f7fff};
  std::vector<float> values(count);
  for (float& value : values) value = std::bit_cast<float>(static_cast<uint32_t>(bed.random().next()));
  for (size_t i = 0; i < std::min(count, std::size(special)); ++i) values[i] = std::bit_cast<float>(special[i]);
  return values;
}

float widened(uint16_t bf16) { return std::bit_cast<float>(static_cast<uint32_t>(bf16) << 16); }

/// With a rest of 0 the rounding itself is compared; the second gradient has the rest of the first.
TEST_P(ComputeVectors, PacksInBf16) {
  const std::unique_ptr<StagedCopies> copies = *staged_copies(compute());
  for (const size_t count : kCounts) {
    for (const size_t offset : {0, 1, 2}) {
      std::vector<float> exact_rest(count);
      const auto rest = bed().make(exact_rest, offset);
      for (const std::vector<float>& gradient : {numbers_to_round(bed(), count), bed().normal(count)}) {
        std::vector<uint16_t> expected(count), by_host(count);
        std::vector<float> rest_by_host = exact_rest;
        for (size_t i = 0; i < count; ++i) {
          const float exact = gradient[i] + exact_rest[i];
          expected[i] = bf16_reference(exact);
          const float left_out = exact - widened(expected[i]);
          exact_rest[i] = std::isfinite(left_out) ? left_out : 0.0f;
        }
        ps::pack(PushFormat::bf16, gradient, rest_by_host.data(), by_host.data());
        EXPECT_EQ(by_host, expected);
        expect_same_bits(rest_by_host, exact_rest);
        const auto source = bed().make(gradient, offset);
        const auto packed = bed().poisoned<uint16_t>(count, offset < 2 ? offset : 3);
        copies->pack(GradientFormat::bf16, count, source.data(), rest.data(), packed.data());
        ASSERT_TRUE(copies->finish().ok());
        EXPECT_EQ(bed().read(packed), expected);
        expect_same_bits(bed().read(rest), exact_rest);
      }
    }
  }
}

/// The second gradient of each count has the rest of the first. Blocks with and without NaN and infinity.
TEST_P(ComputeVectors, PacksWithTheBitsOfTheHost) {
  const std::unique_ptr<StagedCopies> copies = *staged_copies(compute());
  for (const PushFormat format : {PushFormat::bf16, PushFormat::int8, PushFormat::int4}) {
    for (const size_t count : {1, 2, 63, 64, 65, 127, 1024, 100'003}) {
      const size_t halves = (ps::packed_bytes(count, format) + 1) / 2;
      for (const size_t offset : {0, 1}) {
        std::vector<float> rest_by_host(count);
        const auto rest = bed().make(rest_by_host, offset);
        for (const std::vector<float>& gradient :
             {bed().normal(count), numbers_to_round(bed(), count), bed().normal(count), std::vector<float>(count)}) {
          std::vector<uint16_t> by_host(halves);
          ps::pack(format, gradient, rest_by_host.data(), by_host.data());
          const auto source = bed().make(gradient, offset);
          const auto packed = bed().make(std::vector<uint16_t>(halves), offset);
          copies->pack(ps::gpu_format(format), count, source.data(), rest.data(), packed.data());
          ASSERT_TRUE(copies->finish().ok());
          ASSERT_EQ(bed().read(packed), by_host) << push_format_name(format) << " " << count;
          expect_same_bits(bed().read(rest), rest_by_host);
        }
      }
    }
  }
}

TEST_P(ComputeCrc32c, AgreesWithTheHosts) {
  for (const size_t bytes : {0, 1, 3, 4, 9, 1023, 1024, 1025, 4096, 100003, 1 << 20}) {
    for (const size_t offset : {0, 1, 2, 7}) {
      std::vector<uint8_t> values(bytes);
      for (uint8_t& value : values) value = static_cast<uint8_t>(bed().random().next());
      const auto buffer = bed().make(values, offset);
      const absl::StatusOr<uint32_t> sum = compute().crc32c(buffer.data(), bytes);
      ASSERT_TRUE(sum.ok()) << sum.status();
      EXPECT_EQ(*sum, crc32c_portable(values.data(), bytes)) << bytes << " bytes at " << offset;
    }
  }
}

}  // namespace
}  // namespace gradrail::gpu
