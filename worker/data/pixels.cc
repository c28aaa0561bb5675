#include "worker/data/pixels.h"

#include "worker/data/vector_clones.h"

namespace gradrail::worker {
namespace {

constexpr float kScale = 1.0f / 255.0f;

}  // namespace

GRADRAIL_VECTOR_CLONES
void scale_pixels(const uint8_t* source, size_t count, float* target) {
  // The conversion is through int: the instruction sets convert signed integers, unsigned ones only the newest.
  for (size_t i = 0; i < count; ++i) target[i] = static_cast<float>(static_cast<int>(source[i])) * kScale;
}

GRADRAIL_VECTOR_CLONES
void centre_pixels(const uint8_t* source, size_t count, float* target) {
  for (size_t i = 0; i < count; ++i) target[i] = static_cast<float>(static_cast<int>(source[i])) * kScale - 0.5f;
}

}  // namespace gradrail::worker
