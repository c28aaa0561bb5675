#pragma once

#include <cstddef>
#include <cstdint>

#include "gpu/compute/compute.h"

namespace gradrail::worker {

/// Allocates parts of one piece of device memory; without memory it only counts the bytes needed.
class DeviceArena {
 public:
  explicit DeviceArena(std::byte* memory = nullptr) : memory_(memory) {}

  template <typename T>
  T* take(size_t count) {
    // 256: devices read fastest from such addresses, and libraries require them of operands.
    constexpr size_t kLine = 256;
    std::byte* part = memory_ == nullptr ? nullptr : memory_ + used_;
    used_ += (count * sizeof(T) + kLine - 1) / kLine * kLine;
    return reinterpret_cast<T*>(part);
  }
  size_t bytes() const { return used_; }

 private:
  std::byte* memory_;
  size_t used_ = 0;
};

/// A layer of a network on a gpu::Compute. All functions only enqueue. The backward pass is parameter_gradients(), then
/// (except in the first layer) input_gradient(), after a forward() with the same input.
class DeviceLayer {
 public:
  virtual ~DeviceLayer() = default;

  virtual void forward(gpu::Compute& on, const float* input, const float* weights, const float* bias) = 0;
  virtual void parameter_gradients(gpu::Compute& on, const float* input, float* weights, float* bias) = 0;
  virtual void input_gradient(gpu::Compute& on, const float* weights, float* gradient) = 0;

  float* output() const { return output_; }
  float* output_gradient() const { return output_gradient_; }  ///< the next layer writes it; the way back changes it

 protected:
  float* output_ = nullptr;
  float* output_gradient_ = nullptr;
};

/// Y [batch, outputs] = f(X [batch, inputs] · W + b).
class DeviceDense final : public DeviceLayer {
 public:
  DeviceDense(DeviceArena& arena, size_t batch, size_t inputs, size_t outputs, gpu::Activation f);

  void forward(gpu::Compute& on, const float* input, const float* weights, const float* bias) override;
  void parameter_gradients(gpu::Compute& on, const float* input, float* weights, float* bias) override;
  void input_gradient(gpu::Compute& on, const float* weights, float* gradient) override;

 private:
  const size_t batch_, inputs_, outputs_;
  const gpu::Activation f_;
};

/// 5×5 convolution (SAME) of images with bias, ReLU and 2×2 max-pool; weights [5, 5, inputs, outputs].
class DeviceConvolution final : public DeviceLayer {
 public:
  DeviceConvolution(DeviceArena& arena, const gpu::ImageShape& input, size_t outputs);

  void forward(gpu::Compute& on, const float* input, const float* weights, const float* bias) override;
  void parameter_gradients(gpu::Compute& on, const float* input, float* weights, float* bias) override;
  void input_gradient(gpu::Compute& on, const float* weights, float* gradient) override;

 private:
  size_t positions() const { return input_.count * input_.height * input_.width; }
  size_t patch() const;

  const gpu::ImageShape input_;
  const gpu::ImageShape convolved_shape_;
  float* columns_;  // patches of the input, later their gradient: much the largest part of the network
  float* convolved_;
  float* convolved_gradient_;
};

}  // namespace gradrail::worker
