#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "worker/models/cnn.h"

namespace gradrail::worker {

// The multi-GPU tutorial's network written down plainly, in double, to compare Cnn with.

using Doubles = std::vector<double>;
using CnnTensors = std::vector<Doubles>;  // in the schema's order

inline CnnTensors zero_cnn_tensors(const Cnn::Shape& shape) {
  CnnTensors tensors;
  for (const Tensor& tensor : Cnn::schema(shape)) tensors.emplace_back(tensor.elements());
  return tensors;
}

/// [batch, side, side, channels].
struct Volume {
  Volume(size_t batch, size_t side, size_t channels)
      : batch(batch), side(side), channels(channels), values(batch * side * side * channels) {}
  size_t offset(size_t n, size_t y, size_t x) const { return ((n * side + y) * side + x) * channels; }
  const double* at(size_t n, size_t y, size_t x) const { return values.data() + offset(n, y, x); }
  double* at(size_t n, size_t y, size_t x) { return values.data() + offset(n, y, x); }

  size_t batch, side, channels;
  Doubles values;
};

/// Calls visit(n, y, x, source y, source x, tap) for all that a 5×5 SAME convolution multiplies.
template <typename Visit>
void for_each_tap(size_t batch, size_t side, Visit visit) {
  for (size_t n = 0; n < batch; ++n) {
    for (size_t y = 0; y < side; ++y) {
      for (size_t x = 0; x < side; ++x) {
        for (size_t tap = 0; tap < 25; ++tap) {
          const size_t from_y = y + tap / 5, from_x = x + tap % 5;  // two more than meant: no sign
          if (from_y < 2 || from_x < 2 || from_y >= side + 2 || from_x >= side + 2) continue;
          visit(n, y, x, from_y - 2, from_x - 2, tap);
        }
      }
    }
  }
}

/// Convolution, bias, ReLU. weights: [5, 5, inputs, outputs].
inline Volume reference_convolution(const Volume& in, const Doubles& weights, const Doubles& bias) {
  Volume out(in.batch, in.side, bias.size());
  for (size_t i = 0; i < out.values.size(); ++i) out.values[i] = bias[i % bias.size()];
  for_each_tap(in.batch, in.side, [&](size_t n, size_t y, size_t x, size_t from_y, size_t from_x, size_t tap) {
    double* to = out.at(n, y, x);
    for (size_t i = 0; i < in.channels; ++i) {
      const double value = in.at(n, from_y, from_x)[i];
      const double* weight = weights.data() + (tap * in.channels + i) * out.channels;
      for (size_t o = 0; o < out.channels; ++o) to[o] += value * weight[o];
    }
  });
  for (double& value : out.values) value = std::max(value, 0.0);
  return out;
}

/// Where in `in` each element of the 2×2 max-pool comes from: the first of equals.
inline std::vector<size_t> reference_winners(const Volume& in) {
  std::vector<size_t> winners;
  for (size_t n = 0; n < in.batch; ++n) {
    for (size_t y = 0; y < in.side; y += 2) {
      for (size_t x = 0; x < in.side; x += 2) {
        for (size_t c = 0; c < in.channels; ++c) {
          size_t best = in.offset(n, y, x) + c;
          for (const size_t other : {in.offset(n, y, x + 1), in.offset(n, y + 1, x), in.offset(n, y + 1, x + 1)}) {
            if (in.values[other + c] > in.values[best]) best = other + c;
          }
          winners.push_back(best);
        }
      }
    }
  }
  return winners;
}

/// One stage and what its way back needs.
struct ReferenceStage {
  ReferenceStage(const Volume& source, const Doubles& weights, const Doubles& bias)
      : source(source),
        active(reference_convolution(source, weights, bias)),
        winners(reference_winners(active)),
        pooled(source.batch, source.side / 2, bias.size()) {
    for (size_t i = 0; i < winners.size(); ++i) pooled.values[i] = active.values[winners[i]];
  }

  /// Returns the gradient of the source.
  Volume backward(const Volume& pooled_gradient, const Doubles& weights, Doubles& to_weights, Doubles& to_bias) const {
    Volume gradient(active.batch, active.side, active.channels);
    for (size_t i = 0; i < winners.size(); ++i) gradient.values[winners[i]] += pooled_gradient.values[i];
    for (size_t i = 0; i < gradient.values.size(); ++i) {
      if (active.values[i] <= 0.0) gradient.values[i] = 0.0;
      to_bias[i % active.channels] += gradient.values[i];
    }
    Volume back(source.batch, source.side, source.channels);
    for_each_tap(source.batch, source.side,
                 [&](size_t n, size_t y, size_t x, size_t from_y, size_t from_x, size_t tap) {
                   const double* of = gradient.at(n, y, x);
                   for (size_t i = 0; i < source.channels; ++i) {
                     const size_t row = (tap * source.channels + i) * active.channels;
                     const double value = source.at(n, from_y, from_x)[i];
                     double sum = 0.0;
                     for (size_t o = 0; o < active.channels; ++o) {
                       to_weights[row + o] += value * of[o];
                       sum += weights[row + o] * of[o];
                     }
                     back.at(n, from_y, from_x)[i] += sum;
                   }
                 });
    return back;
  }

  Volume source, active;
  std::vector<size_t> winners;
  Volume pooled;
};

/// Y = X · W + b.
inline Doubles reference_layer(const Doubles& x, const Doubles& weights, const Doubles& bias, bool with_relu) {
  const size_t outputs = bias.size(), inputs = weights.size() / outputs, rows = x.size() / inputs;
  Doubles y(rows * outputs);
  for (size_t row = 0; row < rows; ++row) {
    double* to = y.data() + row * outputs;
    std::copy(bias.begin(), bias.end(), to);
    for (size_t i = 0; i < inputs; ++i) {
      for (size_t o = 0; o < outputs; ++o) to[o] += x[row * inputs + i] * weights[i * outputs + o];
    }
    for (size_t o = 0; with_relu && o < outputs; ++o) to[o] = std::max(to[o], 0.0);
  }
  return y;
}

/// From dY (through ReLU where y <= 0, if there is one) to the gradients; returns that of X.
inline Doubles reference_layer_backward(const Doubles& x, const Doubles& y, Doubles dy, bool with_relu,
                                        const Doubles& weights, Doubles& to_weights, Doubles& to_bias) {
  const size_t outputs = to_bias.size(), inputs = weights.size() / outputs, rows = x.size() / inputs;
  Doubles back(x.size());
  for (size_t row = 0; row < rows; ++row) {
    double* of = dy.data() + row * outputs;
    for (size_t o = 0; o < outputs; ++o) {
      if (with_relu && y[row * outputs + o] <= 0.0) of[o] = 0.0;
      to_bias[o] += of[o];
    }
    for (size_t i = 0; i < inputs; ++i) {
      double sum = 0.0;
      for (size_t o = 0; o < outputs; ++o) {
        to_weights[i * outputs + o] += x[row * inputs + i] * of[o];
        sum += weights[i * outputs + o] * of[o];
      }
      back[row * inputs + i] = sum;
    }
  }
  return back;
}

/// Returns the mean cost; turns the logits into its gradient.
inline double reference_softmax(Doubles& logits, absl::Span<const uint8_t> labels, size_t classes) {
  double cost = 0.0;
  for (size_t row = 0; row < labels.size(); ++row) {
    double* values = logits.data() + row * classes;
    const double largest = *std::max_element(values, values + classes);
    double sum = 0.0;
    for (size_t c = 0; c < classes; ++c) sum += std::exp(values[c] - largest);
    cost += std::log(sum) + largest - values[labels[row]];
    for (size_t c = 0; c < classes; ++c) {
      values[c] =
          (std::exp(values[c] - largest) / sum - (labels[row] == c ? 1 : 0)) / static_cast<double>(labels.size());
    }
  }
  return cost / static_cast<double>(labels.size());
}

/// Forward and backward pass. Returns the mean cost; adds the gradients.
inline double reference_cnn_step(const Cnn::Shape& shape, absl::Span<const float> images,
                                 absl::Span<const uint8_t> labels, const CnnTensors& p, CnnTensors& g) {
  Volume source(shape.batch, shape.side, 1);
  std::copy(images.begin(), images.end(), source.values.begin());
  const ReferenceStage first(source, p[0], p[1]);
  const ReferenceStage second(first.pooled, p[2], p[3]);
  const Doubles& features = second.pooled.values;
  const Doubles hidden = reference_layer(features, p[4], p[5], true);
  const Doubles units = reference_layer(hidden, p[6], p[7], shape.logits_relu);
  Doubles logits = reference_layer(units, p[8], p[9], false);
  const double cost = reference_softmax(logits, labels, shape.classes);

  const Doubles to_units = reference_layer_backward(units, logits, logits, false, p[8], g[8], g[9]);
  const Doubles to_hidden = reference_layer_backward(hidden, units, to_units, shape.logits_relu, p[6], g[6], g[7]);
  Volume to_features(shape.batch, shape.side / 4, shape.second_channels);
  to_features.values = reference_layer_backward(features, hidden, to_hidden, true, p[4], g[4], g[5]);
  const Volume to_first = second.backward(to_features, p[2], g[2], g[3]);
  first.backward(to_first, p[0], g[0], g[1]);
  return cost;
}

}  // namespace gradrail::worker
