#pragma once

#include "gpu/kernels/common.cuh"

// The thread of an element writes it, with additions in a fixed order: no atomics, the same bits in every run. T is a
// float, or a quad of four channels where the channels allow it.

namespace gradrail::gpu::kernels {

/// Place of an element: image, row, column, and `channel` in units of T.
struct Place {
  Count image;
  Bits32 y, x, channel;
};

__device__ inline Place place_of(Count element, Bits32 height, Bits32 width, Bits32 channels) {
  Place place;
  place.channel = split(element, channels);
  place.x = split(element, width);
  place.y = split(element, height);
  place.image = element;
  return place;
}

__device__ inline void clear(float& value) { value = 0.0f; }
__device__ inline void clear(Quad<float>& value) { value = {{0.0f, 0.0f, 0.0f, 0.0f}}; }

__device__ inline void add(float& sum, float value) { sum += value; }
__device__ inline void add(Quad<float>& sum, const Quad<float>& value) {
  GRADRAIL_UNROLL
  for (int e = 0; e < 4; ++e) sum.at[e] += value.at[e];
}

template <typename T>
__device__ void im2col(const PatchArguments& a, Bits32 channels) {
  const ImageRun& shape = a.shape;
  const T* images = reinterpret_cast<const T*>(a.source);
  T* columns = reinterpret_cast<T*>(a.target);
  const Bits32 border = a.side / 2;
  const Count entries = shape.count * shape.height * shape.width * a.side * a.side * channels;
  for (Count i = thread_index(); i < entries; i += thread_count()) {
    Count rest = i;
    const Bits32 channel = split(rest, channels);
    const Bits32 kx = split(rest, a.side);
    const Bits32 ky = split(rest, a.side);
    const Place patch = place_of(rest, shape.height, shape.width, 1);
    // The difference wraps around above and to the left of the image, and is too large as well.
    const Bits32 y = patch.y + ky - border;
    const Bits32 x = patch.x + kx - border;
    T value;
    clear(value);
    if (y < shape.height && x < shape.width) {
      value = images[((patch.image * shape.height + y) * shape.width + x) * channels + channel];
    }
    columns[i] = value;
  }
}

template <typename T>
__device__ void col2im(const PatchArguments& a, Bits32 channels) {
  const ImageRun& shape = a.shape;
  const T* columns = reinterpret_cast<const T*>(a.source);
  T* images = reinterpret_cast<T*>(a.target);
  const Bits32 border = a.side / 2;
  const Count elements = shape.count * shape.height * shape.width * channels;
  for (Count i = thread_index(); i < elements; i += thread_count()) {
    const Place at = place_of(i, shape.height, shape.width, channels);
    T sum;
    clear(sum);
    // The loop runs from the last entry of the patch to the first: the order of the patches in memory, as the host adds
    // them.
    for (Bits32 ky = a.side; ky-- > 0;) {
      const Bits32 y = at.y + border - ky;
      if (y >= shape.height) continue;
      for (Bits32 kx = a.side; kx-- > 0;) {
        const Bits32 x = at.x + border - kx;
        if (x >= shape.width) continue;
        const Count patch = (at.image * shape.height + y) * shape.width + x;
        const T read =
            columns[((patch * a.side + ky) * a.side + kx) * channels + at.channel];  // one load, also of a quad
        add(sum, read);
      }
    }
    images[i] = sum;
  }
}

/// The larger of two; of equals the first, and a NaN before any number, so that a diverged model shows.
__device__ inline bool replaces(float candidate, float best) {
  return candidate > best || (candidate != candidate && best == best);
}

/// Index of the largest of a window's four.
__device__ inline int largest(const float (&window)[4]) {
  int best = 0;
  float value = window[0];
  GRADRAIL_UNROLL
  for (int i = 1; i < 4; ++i) {
    if (!replaces(window[i], value)) continue;
    best = i;
    value = window[i];
  }
  return best;
}

/// The 2 × 2 window of a pooled element; distances are in units of T.
struct Window {
  Count at[4];
};

__device__ inline Window window_of(const ImageRun& shape, Bits32 channels, Count pooled) {
  const Place place = place_of(pooled, shape.height / 2, shape.width / 2, channels);
  const Count first =
      ((place.image * shape.height + 2 * place.y) * shape.width + 2 * place.x) * channels + place.channel;
  const Count below = first + static_cast<Count>(shape.width) * channels;
  return {{first, first + channels, below, below + channels}};
}

/// Visits four floats of a window, whatever T is: visit(lane of T, the four).
__device__ inline float lane(const float& value, int) { return value; }
__device__ inline float lane(const Quad<float>& value, int e) { return value.at[e]; }
__device__ inline void set_lane(float& value, int, float to) { value = to; }
__device__ inline void set_lane(Quad<float>& value, int e, float to) { value.at[e] = to; }

template <typename T>
__device__ void max_pool(const PoolArguments& a, Bits32 channels) {
  const T* images = reinterpret_cast<const T*>(a.images);
  const Count elements = a.shape.count * (a.shape.height / 2) * (a.shape.width / 2) * channels;
  for (Count i = thread_index(); i < elements; i += thread_count()) {
    const Window w = window_of(a.shape, channels, i);
    const T read[4] = {images[w.at[0]], images[w.at[1]], images[w.at[2]], images[w.at[3]]};
    T result;
    GRADRAIL_UNROLL
    for (int e = 0; e < static_cast<int>(sizeof(T) / sizeof(float)); ++e) {
      const float values[4] = {lane(read[0], e), lane(read[1], e), lane(read[2], e), lane(read[3], e)};
      float best = values[0];
      GRADRAIL_UNROLL
      for (int k = 1; k < 4; ++k) best = replaces(values[k], best) ? values[k] : best;
      set_lane(result, e, best);
    }
    reinterpret_cast<T*>(a.pooled)[i] = result;
  }
}

template <typename T>
__device__ void max_pool_backward(const PoolBackwardArguments& a, Bits32 channels) {
  const T* images = reinterpret_cast<const T*>(a.images);
  T* gradient = reinterpret_cast<T*>(a.gradient);
  const Count elements = a.shape.count * (a.shape.height / 2) * (a.shape.width / 2) * channels;
  for (Count i = thread_index(); i < elements; i += thread_count()) {
    const Window w = window_of(a.shape, channels, i);
    const T read[4] = {images[w.at[0]], images[w.at[1]], images[w.at[2]], images[w.at[3]]};
    const T pooled = reinterpret_cast<const T*>(a.pooled_gradient)[i];
    T result[4];
    GRADRAIL_UNROLL
    for (int e = 0; e < static_cast<int>(sizeof(T) / sizeof(float)); ++e) {
      const float values[4] = {lane(read[0], e), lane(read[1], e), lane(read[2], e), lane(read[3], e)};
      const int best = largest(values);
      GRADRAIL_UNROLL
      for (int k = 0; k < 4; ++k) set_lane(result[k], e, k == best ? lane(pooled, e) : 0.0f);
    }
    GRADRAIL_UNROLL
    for (int k = 0; k < 4; ++k) gradient[w.at[k]] = result[k];
  }
}

#define GRADRAIL_IMAGE_KERNEL(operation, Arguments)                                                             \
  extern "C" __global__ GRADRAIL_KERNEL_BOUNDS void gradrail_##operation(const __grid_constant__ Arguments a) { \
    if (a.shape.by_quads != 0) {                                                                                \
      operation<Quad<float>>(a, a.shape.channels / 4);                                                          \
    } else {                                                                                                    \
      operation<float>(a, a.shape.channels);                                                                    \
    }                                                                                                           \
  }

GRADRAIL_IMAGE_KERNEL(im2col, PatchArguments)
GRADRAIL_IMAGE_KERNEL(col2im, PatchArguments)
GRADRAIL_IMAGE_KERNEL(max_pool, PoolArguments)
GRADRAIL_IMAGE_KERNEL(max_pool_backward, PoolBackwardArguments)

#undef GRADRAIL_IMAGE_KERNEL

}  // namespace gradrail::gpu::kernels
