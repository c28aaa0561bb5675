#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "worker/models/mlp.h"

namespace gradrail::worker {

/// Tensors in the schema's order: W1, W2, b1, b2.
template <typename Real>
using Tensors = std::vector<std::vector<Real>>;

template <typename Real>
Tensors<Real> zero_tensors(const Mlp::Shape& shape) {
  Tensors<Real> tensors;
  for (const Tensor& tensor : Mlp::schema(shape)) {
    size_t count = 1;
    for (const int64_t size : tensor.shape) count *= static_cast<size_t>(size);
    tensors.emplace_back(count);
  }
  return tensors;
}

/// The reference network written down plainly, to compare Mlp with. Returns the mean cost; adds `scale` times the
/// gradient of it to `gradients`.
template <typename Real>
Real reference_step(const Mlp::Shape& s, absl::Span<const float> images, absl::Span<const uint8_t> labels,
                    const Tensors<Real>& parameters, Real scale, Tensors<Real>& gradients) {
  const std::vector<Real>&w1 = parameters[0], &w2 = parameters[1], &b1 = parameters[2], &b2 = parameters[3];
  const Real share = scale / static_cast<Real>(s.batch);
  Real cost = 0;
  std::vector<Real> hidden(s.hidden);
  std::vector<Real> logits(s.classes);
  std::vector<Real> back(s.hidden);
  for (size_t row = 0; row < s.batch; ++row) {
    const float* image = images.data() + row * s.inputs;
    std::copy(b1.begin(), b1.end(), hidden.begin());
    for (size_t i = 0; i < s.inputs; ++i) {
      if (image[i] == 0.0f) continue;  // most pixels are: the difference between a slow test and a quick one
      for (size_t j = 0; j < s.hidden; ++j) hidden[j] += static_cast<Real>(image[i]) * w1[i * s.hidden + j];
    }
    for (Real& value : hidden) value = 1 / (1 + std::exp(-value));
    std::copy(b2.begin(), b2.end(), logits.begin());
    for (size_t j = 0; j < s.hidden; ++j) {
      for (size_t c = 0; c < s.classes; ++c) logits[c] += hidden[j] * w2[j * s.classes + c];
    }
    const Real largest = *std::max_element(logits.begin(), logits.end());
    Real sum = 0;
    for (const Real value : logits) sum += std::exp(value - largest);
    cost += std::log(sum) + largest - logits[labels[row]];

    std::fill(back.begin(), back.end(), Real{0});
    for (size_t c = 0; c < s.classes; ++c) {
      const Real error = share * (std::exp(logits[c] - largest) / sum - (labels[row] == c ? 1 : 0));
      gradients[3][c] += error;
      for (size_t j = 0; j < s.hidden; ++j) {
        gradients[1][j * s.classes + c] += hidden[j] * error;
        back[j] += w2[j * s.classes + c] * error;
      }
    }
    for (size_t j = 0; j < s.hidden; ++j) {
      back[j] *= hidden[j] * (1 - hidden[j]);
      gradients[2][j] += back[j];
    }
    for (size_t i = 0; i < s.inputs; ++i) {
      if (image[i] == 0.0f) continue;
      for (size_t j = 0; j < s.hidden; ++j) gradients[0][i * s.hidden + j] += static_cast<Real>(image[i]) * back[j];
    }
  }
  return cost / static_cast<Real>(s.batch);
}

}  // namespace gradrail::worker
