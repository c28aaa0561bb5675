#pragma once

#include <memory>
#include <string>
#include <utility>

#include "gpu/compute/compute.h"

namespace gradrail::worker {

/// The host's Compute under another name. Its memory is `room_bytes`; the device is lost at the `lost_at`th download.
struct Fault {
  size_t room_bytes = SIZE_MAX;
  gpu::CopyTicket lost_at = UINT64_MAX;
};

class FaultyCompute final : public gpu::Compute {
 public:
  explicit FaultyCompute(Fault fault) : fault_(fault) {}

  const std::string& name() const override { return name_; }
  bool is_device() const override { return true; }
  absl::StatusOr<std::unique_ptr<gpu::Memory>> allocate(size_t bytes) override {
    if (bytes > fault_.room_bytes) return absl::ResourceExhaustedError("too much was asked for");
    return host_->allocate(bytes);
  }
  absl::StatusOr<std::unique_ptr<gpu::Pin>> pin(void*, size_t) override {
    return absl::UnimplementedError("nothing is pinned here");
  }
  void upload(void* to, const void* from, size_t bytes) override { host_->upload(to, from, bytes); }
  gpu::CopyTicket download(void* to, const void* from, size_t bytes) override {
    // A lost device completes no download.
    return ++downloads_ < fault_.lost_at ? host_->download(to, from, bytes) : downloads_;
  }
  bool is_done(gpu::CopyTicket) override { return true; }
  absl::Status wait(gpu::CopyTicket ticket) override { return ticket < fault_.lost_at ? host_->wait(ticket) : lost(); }
  absl::Status finish() override { return downloads_ < fault_.lost_at ? host_->finish() : lost(); }

  void product(const gpu::ProductShape& shape, const float* a, const float* b, float* c, bool accumulate) override {
    host_->product(shape, a, b, c, accumulate);
  }
  void bias_activation(size_t rows, size_t columns, const float* bias, gpu::Activation f, float* x) override {
    host_->bias_activation(rows, columns, bias, f, x);
  }
  void activation_backward(size_t count, gpu::Activation f, const float* y, float* gradient) override {
    host_->activation_backward(count, f, y, gradient);
  }
  void column_sums(size_t rows, size_t columns, const float* x, float* sums) override {
    host_->column_sums(rows, columns, x, sums);
  }
  void softmax_cross_entropy(size_t rows, size_t columns, const uint8_t* labels, float* logits, float* costs) override {
    host_->softmax_cross_entropy(rows, columns, labels, logits, costs);
  }
  void im2col(const gpu::ImageShape& shape, size_t kernel, const float* images, float* columns) override {
    host_->im2col(shape, kernel, images, columns);
  }
  void col2im(const gpu::ImageShape& shape, size_t kernel, const float* columns, float* images) override {
    host_->col2im(shape, kernel, columns, images);
  }
  void max_pool(const gpu::ImageShape& shape, const float* images, float* pooled) override {
    host_->max_pool(shape, images, pooled);
  }
  void max_pool_backward(const gpu::ImageShape& shape, const float* images, const float* pooled_gradient,
                         float* gradient) override {
    host_->max_pool_backward(shape, images, pooled_gradient, gradient);
  }
  void sum(absl::Span<const float* const> sources, size_t count, float scale, float* target) override {
    host_->sum(sources, count, scale, target);
  }
  void update(const gpu::UpdateArguments& arguments) override { host_->update(arguments); }
  absl::StatusOr<uint32_t> crc32c(const void* data, size_t bytes) override { return host_->crc32c(data, bytes); }

 private:
  absl::Status lost() const { return absl::UnavailableError(name_ + ": the GPU was lost"); }

  const std::string name_ = "GPU 7 (faulty)";
  const Fault fault_;
  const std::unique_ptr<gpu::Compute> host_ = gpu::host_compute();
  gpu::CopyTicket downloads_ = 0;
};

}  // namespace gradrail::worker
