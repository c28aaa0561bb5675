#pragma once

#include <cstddef>
#include <cstdint>

namespace gradrail::worker {

/// target[i] = source[i] / 255, by multiplication: at most one unit in the last place from the quotient.
void scale_pixels(const uint8_t* source, size_t count, float* target);

/// target[i] = source[i] / 255 - 0.5, likewise.
void centre_pixels(const uint8_t* source, size_t count, float* target);

}  // namespace gradrail::worker
