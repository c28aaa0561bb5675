#include <algorithm>

#include "base/check.h"
#include "gpu/compute/device_compute.h"
#include "gpu/compute/device_operations_run.h"
#include "gpu/kernels/arguments.h"

namespace gradrail::gpu {
namespace {

using kernels::Bits32;
using kernels::Buffer;

static_assert(sizeof(kernels::Count) == sizeof(size_t) && sizeof(Bits32) == sizeof(uint32_t));

kernels::Function function_of(Activation f) {
  switch (f) {
    case Activation::none:
      return kernels::Function::none;
    case Activation::sigmoid:
      return kernels::Function::sigmoid;
    case Activation::relu:
      return kernels::Function::relu;
  }
  GRADRAIL_CHECK(false);
}

/// Kernels count rows of a matrix in 64 bits, but all within one row in 32: division by those is what takes the time.
Bits32 narrow(size_t length) {
  // A row of 2^32 elements has 16 GiB; no layer is that large.
  GRADRAIL_CHECK(length <= UINT32_MAX);
  return static_cast<Bits32>(length);
}

// A thread moves 16 bytes by one instruction where each row begins at a multiple of 16.
bool can_go_by_quads(size_t length, std::initializer_list<const void*> buffers) {
  return length % 4 == 0 && std::all_of(buffers.begin(), buffers.end(),
                                        [](const void* data) { return kernels::is_aligned(data, 4 * sizeof(float)); });
}

kernels::ImageRun image_run(const ImageShape& shape, std::initializer_list<const void*> buffers) {
  return {.count = shape.count,
          .height = narrow(shape.height),
          .width = narrow(shape.width),
          .channels = narrow(shape.channels),
          .by_quads = can_go_by_quads(shape.channels, buffers) ? 1u : 0u};
}

size_t per_thread(const kernels::ImageRun& shape) { return shape.by_quads != 0 ? 4 : 1; }

}  // namespace

void DeviceCompute::bias_activation(size_t rows, size_t columns, const float* bias, Activation f, float* x) {
  if (columns == 0) return;
  const bool by_quads = can_go_by_quads(columns, {bias, x});
  const kernels::BiasActivationArguments arguments = {.rows = rows,
                                                      .columns = narrow(columns),
                                                      .by_quads = by_quads ? 1u : 0u,
                                                      .function = function_of(f),
                                                      .bias = bias,
                                                      .x = x};
  launch("gradrail_bias_activation", rows * columns / (by_quads ? 4 : 1), arguments);
}

void DeviceCompute::activation_backward(size_t count, Activation f, const float* y, float* gradient) {
  if (f == Activation::none) return;
  const kernels::ActivationBackwardArguments arguments = {.run = kernels::run_of(count, {Buffer{y}, Buffer{gradient}}),
                                                          .function = function_of(f),
                                                          .y = y,
                                                          .gradient = gradient};
  launch("gradrail_activation_backward", kernels::threads_for(arguments.run), arguments);
}

void DeviceCompute::softmax_cross_entropy(size_t rows, size_t columns, const uint8_t* labels, float* logits,
                                          float* costs) {
  if (rows == 0 || columns == 0) return;
  // share: the gradient is that of the mean over the batch, so that each row contributes 1/rows.
  const kernels::SoftmaxArguments arguments = {.rows = rows,
                                               .columns = narrow(columns),
                                               .share = 1.0f / static_cast<float>(rows),
                                               .labels = labels,
                                               .logits = logits,
                                               .costs = costs};
  // Each row has one thread: its sums then have one order, without atomic operations.
  launch("gradrail_softmax_cross_entropy", rows, arguments);
}

void DeviceCompute::im2col(const ImageShape& shape, size_t kernel, const float* images, float* columns) {
  const kernels::PatchArguments arguments = {
      .shape = image_run(shape, {images, columns}), .side = narrow(kernel), .source = images, .target = columns};
  // Each entry of a patch, or four channels of it, has one thread.
  launch("gradrail_im2col", shape.elements() * kernel * kernel / per_thread(arguments.shape), arguments);
}

void DeviceCompute::col2im(const ImageShape& shape, size_t kernel, const float* columns, float* images) {
  const kernels::PatchArguments arguments = {
      .shape = image_run(shape, {images, columns}), .side = narrow(kernel), .source = columns, .target = images};
  // Each element of the image has one thread. It gathers its entries: no atomic operation, one order of the sum.
  launch("gradrail_col2im", shape.elements() / per_thread(arguments.shape), arguments);
}

void DeviceCompute::max_pool(const ImageShape& shape, const float* images, float* pooled) {
  GRADRAIL_CHECK(shape.height % 2 == 0 && shape.width % 2 == 0);
  const kernels::PoolArguments arguments = {
      .shape = image_run(shape, {images, pooled}), .images = images, .pooled = pooled};
  launch("gradrail_max_pool", shape.elements() / 4 / per_thread(arguments.shape), arguments);
}

void DeviceCompute::max_pool_backward(const ImageShape& shape, const float* images, const float* pooled_gradient,
                                      float* gradient) {
  GRADRAIL_CHECK(shape.height % 2 == 0 && shape.width % 2 == 0);
  const kernels::PoolBackwardArguments arguments = {.shape = image_run(shape, {images, pooled_gradient, gradient}),
                                                    .images = images,
                                                    .pooled_gradient = pooled_gradient,
                                                    .gradient = gradient};
  launch("gradrail_max_pool_backward", shape.elements() / 4 / per_thread(arguments.shape), arguments);
}

}  // namespace gradrail::gpu
