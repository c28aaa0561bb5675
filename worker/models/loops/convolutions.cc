#include <algorithm>
#include <memory>
#include <utility>

#include "base/check.h"
#include "base/status.h"
#include "gpu/compute/compute.h"
#include "worker/models/convolutions.h"
#include "worker/models/device_layers.h"

// This file replaces convolutions.cc in a build without oneDNN: it runs the layers for devices on the host.

namespace gradrail::worker {

struct Convolutions::Impl {
  Impl(const Shape& shape, DeviceArena arena)
      : first(arena, {shape.batch, shape.side, shape.side, 1}, shape.first),
        second(arena, {shape.batch, shape.side / 2, shape.side / 2, shape.first}, shape.second),
        feature_count(shape.batch * (shape.side / 4) * (shape.side / 4) * shape.second),
        bytes(arena.bytes()) {}

  std::unique_ptr<gpu::Compute> host;
  std::unique_ptr<gpu::Memory> memory;
  DeviceConvolution first, second;
  size_t feature_count;
  size_t bytes;
  const float* images = nullptr;          // images of the last forward()
  const float* second_weights = nullptr;  // weights of the last forward()
};

Convolutions::Convolutions(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Convolutions::Convolutions(Convolutions&&) noexcept = default;
Convolutions& Convolutions::operator=(Convolutions&&) noexcept = default;
Convolutions::~Convolutions() = default;

absl::StatusOr<Convolutions> Convolutions::create(Shape shape) {
  GRADRAIL_CHECK(shape.batch > 0 && shape.side > 0 && shape.side % 4 == 0 && shape.first > 0 && shape.second > 0);
  std::unique_ptr<gpu::Compute> host = gpu::host_compute();
  const size_t bytes = Impl(shape, DeviceArena()).bytes;
  GRADRAIL_ASSIGN_OR_RETURN(std::unique_ptr<gpu::Memory> memory, host->allocate(bytes));
  auto impl = std::make_unique<Impl>(shape, DeviceArena(memory->data()));
  impl->host = std::move(host);
  impl->memory = std::move(memory);
  return Convolutions(std::move(impl));
}

void Convolutions::forward(const float* images, Weights first, Weights second, float* features) {
  Impl& impl = *impl_;
  impl.images = images;
  impl.second_weights = second.weights;
  impl.first.forward(*impl.host, images, first.weights, first.bias);
  impl.second.forward(*impl.host, impl.first.output(), second.weights, second.bias);
  std::copy_n(impl.second.output(), impl.feature_count, features);
}

void Convolutions::backward_second(const float* features_gradient, Gradient second) {
  Impl& impl = *impl_;
  std::copy_n(features_gradient, impl.feature_count, impl.second.output_gradient());
  impl.second.parameter_gradients(*impl.host, impl.first.output(), second.weights, second.bias);
  impl.second.input_gradient(*impl.host, impl.second_weights, impl.first.output_gradient());
}

void Convolutions::backward_first(Gradient first) {
  Impl& impl = *impl_;
  impl.first.parameter_gradients(*impl.host, impl.images, first.weights, first.bias);
  GRADRAIL_CHECK(impl.host->finish().ok());
}

}  // namespace gradrail::worker
