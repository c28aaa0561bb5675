#include "worker/models/device_layers.h"

namespace gradrail::worker {
namespace {

constexpr size_t kDeviceKernel = 5;

}  // namespace

DeviceDense::DeviceDense(DeviceArena& arena, size_t batch, size_t inputs, size_t outputs, gpu::Activation f)
    : batch_(batch), inputs_(inputs), outputs_(outputs), f_(f) {
  output_ = arena.take<float>(batch * outputs);
  // No reader in the backward pass needs the result of a layer without a function once its gradient is written. The
  // softmax overwrites the logits with their gradient.
  output_gradient_ = f == gpu::Activation::none ? output_ : arena.take<float>(batch * outputs);
}

void DeviceDense::forward(gpu::Compute& on, const float* input, const float* weights, const float* bias) {
  on.product({.m = batch_, .k = inputs_, .n = outputs_}, input, weights, output_);
  on.bias_activation(batch_, outputs_, bias, f_, output_);
}

void DeviceDense::parameter_gradients(gpu::Compute& on, const float* input, float* weights, float* bias) {
  if (f_ != gpu::Activation::none) on.activation_backward(batch_ * outputs_, f_, output_, output_gradient_);
  on.product({.m = inputs_, .k = batch_, .n = outputs_, .transposed_a = true}, input, output_gradient_, weights);
  on.column_sums(batch_, outputs_, output_gradient_, bias);
}

void DeviceDense::input_gradient(gpu::Compute& on, const float* weights, float* gradient) {
  on.product({.m = batch_, .k = outputs_, .n = inputs_, .transposed_b = true}, output_gradient_, weights, gradient);
}

DeviceConvolution::DeviceConvolution(DeviceArena& arena, const gpu::ImageShape& input, size_t outputs)
    : input_(input), convolved_shape_{input.count, input.height, input.width, outputs} {
  // Pooling keeps one of four values.
  output_ = arena.take<float>(convolved_shape_.elements() / 4);
  output_gradient_ = arena.take<float>(convolved_shape_.elements() / 4);
  columns_ = arena.take<float>(positions() * patch());
  convolved_ = arena.take<float>(convolved_shape_.elements());
  convolved_gradient_ = arena.take<float>(convolved_shape_.elements());
}

size_t DeviceConvolution::patch() const { return kDeviceKernel * kDeviceKernel * input_.channels; }

void DeviceConvolution::forward(gpu::Compute& on, const float* input, const float* weights, const float* bias) {
  const size_t outputs = convolved_shape_.channels;
  on.im2col(input_, kDeviceKernel, input, columns_);
  on.product({.m = positions(), .k = patch(), .n = outputs}, columns_, weights, convolved_);
  on.bias_activation(positions(), outputs, bias, gpu::Activation::relu, convolved_);
  on.max_pool(convolved_shape_, convolved_, output_);
}

void DeviceConvolution::parameter_gradients(gpu::Compute& on, const float*, float* weights, float* bias) {
  const size_t outputs = convolved_shape_.channels;
  on.max_pool_backward(convolved_shape_, convolved_, output_gradient_, convolved_gradient_);
  on.activation_backward(convolved_shape_.elements(), gpu::Activation::relu, convolved_, convolved_gradient_);
  on.product({.m = patch(), .k = positions(), .n = outputs, .transposed_a = true}, columns_, convolved_gradient_,
             weights);
  on.column_sums(positions(), outputs, convolved_gradient_, bias);
}

void DeviceConvolution::input_gradient(gpu::Compute& on, const float* weights, float* gradient) {
  const size_t outputs = convolved_shape_.channels;
  // `columns_` is used again: parameter_gradients() has read the patches of the images before.
  on.product({.m = positions(), .k = outputs, .n = patch(), .transposed_b = true}, convolved_gradient_, weights,
             columns_);
  on.col2im(input_, kDeviceKernel, columns_, gradient);
}

}  // namespace gradrail::worker
