#include "worker/models/elementwise.h"

#include <algorithm>
#include <bit>
#include <cmath>

#include "worker/data/vector_clones.h"

namespace gradrail::worker {
namespace {

// Both exp and 1 / exp are normal numbers between these limits: a subnormal would slow the loop down a hundredfold.
constexpr float kExpLimit = 87.0f;

[[gnu::always_inline]] inline float exp_one(float x) {
  constexpr float kLog2E = 1.44269504088896341f;
  // ln 2 in two parts, the first with so few bits that its multiples are exact.
  constexpr float kLn2High = 0.693359375f;
  constexpr float kLn2Low = -2.12194440e-4f;
  // Adding and taking away 1.5·2²³ rounds to a whole number in every rounding unit, without a call.
  constexpr float kRound = 12582912.0f;

  // This order of comparison passes NaN through to the result: a diverged model must show.
  x = x < -kExpLimit ? -kExpLimit : x;
  x = x > kExpLimit ? kExpLimit : x;
  const float shifted = x * kLog2E + kRound;
  const float whole = shifted - kRound;
  const float r = (x - whole * kLn2High) - whole * kLn2Low;
  float p = 1.9875691500e-4f;
  p = p * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = p * r * r + r + 1.0f;
  // The whole number is in the low bits of `shifted`; moved into the exponent it makes 2^whole.
  const uint32_t exponent = (std::bit_cast<uint32_t>(shifted) + 127u) << 23;
  return p * std::bit_cast<float>(exponent);
}

[[gnu::always_inline]] inline void add_rows(const float* values, size_t rows, size_t columns, float* column_sums) {
  std::fill_n(column_sums, columns, 0.0f);
  for (size_t row = 0; row < rows; ++row) {
    for (size_t j = 0; j < columns; ++j) column_sums[j] += values[row * columns + j];
  }
}

struct ShiftedRows {
  double cost = 0.0;   ///< sum of -log of each label's share, but for the term log Σ exp that is known only afterwards
  size_t correct = 0;  ///< correct rows, as in SoftmaxLoss
};

/// Takes each row's largest logit away, so that no exponential overflows.
ShiftedRows shift_rows(float* logits, const uint8_t* labels, size_t rows, size_t classes) {
  ShiftedRows result;
  for (size_t row = 0; row < rows; ++row) {
    float* values = logits + row * classes;
    const float* const largest = std::max_element(values, values + classes);
    if (largest == values + labels[row]) ++result.correct;
    const float shift = *largest;
    for (size_t j = 0; j < classes; ++j) values[j] -= shift;
    result.cost -= values[labels[row]];
  }
  return result;
}

}  // namespace

GRADRAIL_VECTOR_CLONES
void exponential(float* values, size_t count) {
  for (size_t i = 0; i < count; ++i) values[i] = exp_one(values[i]);
}

GRADRAIL_VECTOR_CLONES
void sigmoid(float* values, size_t count) {
  for (size_t i = 0; i < count; ++i) values[i] = 1.0f / (1.0f + exp_one(-values[i]));
}

GRADRAIL_VECTOR_CLONES
void sigmoid_backward(const float* hidden, float* gradient, size_t rows, size_t columns, float* column_sums) {
  for (size_t i = 0; i < rows * columns; ++i) gradient[i] *= hidden[i] * (1.0f - hidden[i]);
  add_rows(gradient, rows, columns, column_sums);
}

GRADRAIL_VECTOR_CLONES
void relu(float* values, size_t count) {
  // This order of comparison passes NaN through: a diverged model must show.
  for (size_t i = 0; i < count; ++i) values[i] = values[i] < 0.0f ? 0.0f : values[i];
}

GRADRAIL_VECTOR_CLONES
void relu_backward(const float* result, float* gradient, size_t count) {
  for (size_t i = 0; i < count; ++i) gradient[i] = result[i] > 0.0f ? gradient[i] : 0.0f;
}

GRADRAIL_VECTOR_CLONES
void average(absl::Span<const float* const> sources, size_t count, float* target) {
  constexpr size_t kBlock = 1024;  // stays in the first cache from one source to the next
  const float scale = 1.0f / static_cast<float>(sources.size());
  for (size_t first = 0; first < count; first += kBlock) {
    const size_t end = std::min(count, first + kBlock);
    for (size_t i = first; i < end; ++i) target[i] = sources[0][i];
    for (size_t s = 1; s < sources.size(); ++s) {
      const float* source = sources[s];
      for (size_t i = first; i < end; ++i) target[i] += source[i];
    }
    for (size_t i = first; i < end; ++i) target[i] *= scale;
  }
}

GRADRAIL_VECTOR_CLONES
void sum_rows(const float* values, size_t rows, size_t columns, float* column_sums) {
  add_rows(values, rows, columns, column_sums);
}

SoftmaxLoss softmax_cross_entropy(float* logits, const uint8_t* labels, size_t rows, size_t classes) {
  auto [cost, correct] = shift_rows(logits, labels, rows, classes);
  exponential(logits, rows * classes);
  for (size_t row = 0; row < rows; ++row) {
    float* values = logits + row * classes;
    float sum = 0.0f;
    for (size_t j = 0; j < classes; ++j) sum += values[j];
    cost += std::log(sum);
    const float scale = 1.0f / (sum * static_cast<float>(rows));
    for (size_t j = 0; j < classes; ++j) values[j] *= scale;
    values[labels[row]] -= 1.0f / static_cast<float>(rows);
  }
  return {.cost = static_cast<float>(cost / static_cast<double>(rows)), .correct = correct};
}

}  // namespace gradrail::worker
