#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "gpu/compute/blas.h"
#include "gpu/compute/compute.h"
#include "gpu/compute/stream_marks.h"
#include "gpu/driver/device.h"
#include "gpu/driver/module.h"
#include "gpu/driver/stream.h"
#include "gradrail/clock.h"

namespace gradrail::gpu {

struct DeviceOptions {
  /// A device on which no queued work ends for this time counts as lost. The longest work of a step takes milliseconds,
  /// but other processes use the same GPU in turn, and the first kernel may be compiled.
  Duration answer_timeout = std::chrono::seconds(60);
};

/// A GPU: operations on one stream, downloads on another.
/// Threads  One owner.
class DeviceCompute final : public Compute {
 public:
  /// Errors  Those of open_device().
  static absl::StatusOr<std::unique_ptr<DeviceCompute>> open(const Driver& driver, int ordinal,
                                                             const DeviceOptions& options = {});
  ~DeviceCompute() override;

  const std::string& name() const override { return context_->label(); }
  bool is_device() const override { return true; }
  const SharedContext& context() const { return context_; }
  /// Stream of the operations, for other parts of gpu/ that enqueue on it.
  const Stream& stream() const { return compute_; }

  absl::StatusOr<std::unique_ptr<Memory>> allocate(size_t bytes) override;
  absl::StatusOr<std::unique_ptr<Pin>> pin(void* data, size_t bytes) override;
  void upload(void* to, const void* from, size_t bytes) override;
  CopyTicket download(void* to, const void* from, size_t bytes) override;
  /// Whether the copy is done. True as well if an error makes a wait pointless: wait() returns the error.
  bool is_done(CopyTicket ticket) override;
  absl::Status wait(CopyTicket ticket) override;
  absl::Status finish() override;

  void product(const ProductShape& shape, const float* a, const float* b, float* c, bool accumulate) override;
  void column_sums(size_t rows, size_t columns, const float* x, float* sums) override;
  // device_operations*.cc
  void bias_activation(size_t rows, size_t columns, const float* bias, Activation f, float* x) override;
  void activation_backward(size_t count, Activation f, const float* y, float* gradient) override;
  void softmax_cross_entropy(size_t rows, size_t columns, const uint8_t* labels, float* logits, float* costs) override;
  void im2col(const ImageShape& shape, size_t kernel, const float* images, float* columns) override;
  void col2im(const ImageShape& shape, size_t kernel, const float* columns, float* images) override;
  void max_pool(const ImageShape& shape, const float* images, float* pooled) override;
  void max_pool_backward(const ImageShape& shape, const float* images, const float* pooled_gradient,
                         float* gradient) override;
  void sum(absl::Span<const float* const> sources, size_t count, float scale, float* target) override;
  void update(const UpdateArguments& arguments) override;
  absl::StatusOr<uint32_t> crc32c(const void* data, size_t bytes) override;

  /// Sets the first error of this Compute, for other parts of gpu/ that enqueue on this device.
  void fail(const absl::Status& error);
  /// The kernel of StagedCopies::pack(), for a thread that does not own this object. Not for fp32.
  absl::StatusOr<cuda::Function> pack_kernel(GradientFormat format);
  /// Enqueues it on another stream. An error is the caller's.
  /// Threads  Any thread: it only reads what is set once.
  cuda::Result pack(const Stream& stream, cuda::Function kernel, GradientFormat format, size_t count,
                    const float* gradient, float* rest, void* packed) const;

 private:
  DeviceCompute(SharedContext context, Module module, Stream compute, Stream copies, Event behind,
                const DeviceOptions& options);

  /// Enqueues a kernel for about `work_items` threads (it strides over the rest); a refusal becomes the sticky error.
  template <typename... Arguments>
  void launch(const char* kernel, size_t work_items, Arguments... arguments) {
    void* addresses[] = {static_cast<void*>(&arguments)...};
    launch_kernel(kernel, work_items, addresses);
  }
  void launch_kernel(const char* kernel, size_t work_items, void** arguments);
  // Eight warps. Any kernel fits: at most 255 registers × 256 threads are within the 65,536 of a multiprocessor.
  static constexpr unsigned kThreadsPerBlock = 256;
  cuda::Result enqueue(const Stream& stream, cuda::Function kernel, size_t work_items, void** arguments,
                       unsigned block_threads = kThreadsPerBlock) const;

  /// Returns the memory in `kept`, or more of it.
  std::byte* grow(std::unique_ptr<Memory>& kept, size_t bytes);
  /// Device memory of at least so many bytes, for the work of one operation: the next one may get the same. Null after
  /// an error.
  std::byte* scratch(size_t bytes);
  const float* ones(size_t count);
  Blas* blas();

  /// False when nothing may be enqueued any more; makes the device current otherwise.
  bool begin();
  /// Converts a result of the driver into the sticky error; returns whether it was good.
  bool check(cuda::Result result, std::string_view operation) {
    return result == cuda::kSuccess || fail(result, operation);
  }
  /// Converts a result of cuBLAS, which only reports that CUDA failed. The driver reports whether the device was lost.
  void check(const absl::Status& products);
  /// Sets the error; always returns false.
  bool fail(cuda::Result result, std::string_view operation);
  absl::Status take_error();

  /// False after an error.
  bool wait_if_pageable(const void* host, size_t bytes);
  void collect_copies();
  void give_up();
  void wait_in_turns(CopyTicket ticket);

  // Set once.
  const SharedContext context_;
  const DeviceOptions options_;

  // Owner thread.
  Module module_;
  Stream compute_;
  Stream copies_;
  Event behind_;  ///< event that the next download waits for
  std::unique_ptr<Blas> blas_;
  std::unique_ptr<Memory> ones_;
  std::unique_ptr<Memory> scratch_;
  /// Outgrown: to free it would wait for this device and its peers, one of which may be waiting for this thread.
  std::vector<std::unique_ptr<Memory>> retired_;
  StreamMarks marks_;
  CopyTicket last_ticket_ = 0;
  absl::Status error_;  ///< the first; no operation is enqueued until wait() or finish() returned it
  bool error_lasts_ = false;
};

}  // namespace gradrail::gpu
