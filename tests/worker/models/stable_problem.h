#pragma once

#include <cstddef>
#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "base/random.h"
#include "gtest/gtest.h"

namespace gradrail::worker {

inline uint64_t fresh_seed() {
  const uint64_t seed = std::random_device{}();
  ::testing::Test::RecordProperty("seed", std::to_string(seed));
  return seed;
}

/// The distance of gradients that rounding by 2e-6 causes where they are continuous, and a little more.
constexpr double kSmooth = 5e-5;

/// Whether rounding cannot change the gradients much. The order of a sum decides between two nearly equal values of a
/// pool, and between a ReLU's input and 0. `gradients_of(images)` returns all gradients; `distance` compares two.
template <typename Gradients, typename Distance>
bool rounding_is_harmless(const std::vector<float>& images, uint64_t seed, const Gradients& gradients_of,
                          const Distance& distance) {
  constexpr double kRounding = 2e-6;  // more than the difference of two implementations
  const auto exact = gradients_of(images);
  Random random(seed);
  for (int draw = 0; draw < 5; ++draw) {
    std::vector<float> rounded = images;
    for (float& pixel : rounded) pixel *= static_cast<float>(1.0 + kRounding * (2.0 * random.uniform() - 1.0));
    const auto other = gradients_of(rounded);
    for (size_t t = 0; t < exact.size(); ++t) {
      if (distance(other[t], exact[t]) > kSmooth) return false;
    }
  }
  return true;
}

/// About one problem in a hundred is not stable; a hundred in a row mean a defect of the reference.
template <typename IsStable>
uint64_t stable_seed(const IsStable& is_stable) {
  for (int turn = 0; turn < 100; ++turn) {
    if (const uint64_t seed = fresh_seed(); is_stable(seed)) return seed;
  }
  ADD_FAILURE() << "no stable problem";
  return fresh_seed();
}

}  // namespace gradrail::worker
