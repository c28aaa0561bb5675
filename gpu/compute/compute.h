#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/types/span.h"

namespace gradrail::gpu {

/// Memory that a Compute works on, in its own address space: host code may only pass the pointer on.
class Memory {
 public:
  virtual ~Memory() = default;
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;

  std::byte* data() const { return data_; }
  size_t bytes() const { return bytes_; }
  template <typename T>
  T* as() const {
    return reinterpret_cast<T*>(data_);
  }

 protected:
  Memory(std::byte* data, size_t bytes) : data_(data), bytes_(bytes) {}

 private:
  std::byte* data_;
  size_t bytes_;
};

/// Bytes of an allocation that other processes or NICs map: whole pieces of 2 MiB. The driver puts smaller pieces
/// together: a range that is mapped could begin before its piece, and a process that maps one reaches the others.
inline size_t own_allocation(size_t bytes) {
  constexpr size_t kPiece = size_t{2} << 20;
  return (bytes + kPiece - 1) / kPiece * kPiece;
}

/// A range of host memory that devices read and write at full speed and asynchronously, until the object ends.
class Pin {
 public:
  virtual ~Pin() = default;
};

/// A copy to the host that is under way; counts from 1 on each Compute.
using CopyTicket = uint64_t;

enum class Activation : uint8_t { none, sigmoid, relu };

/// C [m, n] = A [m, k] · B [k, n], row-major; a transposed operand has the reverse order in memory ([k, m], [n, k]).
struct ProductShape {
  size_t m = 0;
  size_t k = 0;
  size_t n = 0;
  bool transposed_a = false;
  bool transposed_b = false;
};

/// Images [count, height, width, channels], channels last.
struct ImageShape {
  size_t count = 0;
  size_t height = 0;
  size_t width = 0;
  size_t channels = 0;
  size_t elements() const { return count * height * width * channels; }
};

/// Maximum number of gradients, targets and sources of one call: kernels take their addresses by value.
inline constexpr size_t kMaxBuffers = 64;

/// The elements of a gradient, as ps/protocol/push_format.h draws them. int8 and int4 are whole buckets.
enum class GradientFormat : uint8_t { fp32, bf16, int8, int4 };

enum class UpdateRule : uint8_t { sgd, momentum, nesterov, adam, mean, collect, delayed_nesterov };

/// An update of a run of parameters. The arithmetic is that of ps::apply; its header has the formulae. Addresses are in
/// this Compute's memory. Gradients and targets may also be in pinned host memory.
/// Shapes  parameters, each gradient, state vector and target: [count].
struct UpdateArguments {
  UpdateRule rule = UpdateRule::sgd;
  size_t count = 0;
  float* parameters = nullptr;
  float* state[2] = {nullptr, nullptr};
  absl::Span<const void* const> gradients;       ///< 1 to kMaxBuffers, summed in this order
  GradientFormat format = GradientFormat::fp32;  ///< format of the gradients
  absl::Span<float* const> targets;              ///< fresh parameters are also stored here; 0 to kMaxBuffers
  float gradient_scale = 1.0f;                   ///< 1/N
  float rate = 0.0f;                             ///< adam: with the bias correction of this update
  float momentum = 0.0f;
  float momentum_share = 1.0f;  ///< collect, delayed_nesterov: 1/N
  float beta1 = 0.0f, one_minus_beta1 = 0.0f;
  float beta2 = 0.0f, one_minus_beta2 = 0.0f;
  float epsilon = 0.0f;
  bool decays = false;  ///< decay applied before the rule: g += decay * p, then p *= shrink
  float decay = 0.0f, shrink = 1.0f;
};

/// Computes for a tower or a shard: one device and its operations in order. HostCompute runs each operation immediately
/// in the caller. DeviceCompute enqueues operations on streams of a GPU. Both give the results that the comments state,
/// up to rounding. update() gives the same bits as ps::apply on both.
/// Errors   After the first error all later operations do nothing until wait() or finish() returns that error.
///          UNAVAILABLE: the device was lost; every later call returns it again. RESOURCE_EXHAUSTED: memory.
///          FAILED_PRECONDITION: no cuBLAS, with the package to install.
///          INTERNAL: any other error, with the library's own name for it.
/// Memory   The first operation of its kind loads libraries and allocates memory. The device and its peers stop for
///          this time. Towers run each operation once before the kernels of a TowerSum wait for each other.
/// Threads  One owner.
class Compute {
 public:
  virtual ~Compute() = default;
  Compute(const Compute&) = delete;
  Compute& operator=(const Compute&) = delete;

  /// "host" or "GPU 0 (NVIDIA H200, 0000:19:00.0)".
  virtual const std::string& name() const = 0;
  /// False where operations run in the caller and all memory is host memory.
  virtual bool is_device() const = 0;

  /// Allocates memory, 256-byte aligned, not cleared. RESOURCE_EXHAUSTED: the text has the requested and the free
  /// bytes.
  virtual absl::StatusOr<std::unique_ptr<Memory>> allocate(size_t bytes) = 0;
  /// Pins host memory that copies should reach by DMA. A refusal costs speed only: the caller may continue without.
  virtual absl::StatusOr<std::unique_ptr<Pin>> pin(void* data, size_t bytes) = 0;

  /// Copies in order with the operations; `from` must not change until finish() or a wait() for a later download.
  virtual void upload(void* to, const void* from, size_t bytes) = 0;
  /// Copies after all earlier operations and concurrently with later ones (separate stream): the caller may not
  /// overwrite `from` before it.
  virtual CopyTicket download(void* to, const void* from, size_t bytes) = 0;
  virtual bool is_done(CopyTicket ticket) = 0;
  virtual absl::Status wait(CopyTicket ticket) = 0;
  /// Waits until all earlier operations are done.
  virtual absl::Status finish() = 0;

  // The operations are row-major; buffers do not overlap unless stated. Labels are less than `columns`.

  /// c = a · b, or c += with `accumulate`.
  virtual void product(const ProductShape& shape, const float* a, const float* b, float* c,
                       bool accumulate = false) = 0;
  /// x[i, j] = f(x[i, j] + bias[j]).
  virtual void bias_activation(size_t rows, size_t columns, const float* bias, Activation f, float* x) = 0;
  /// gradient *= f'(where f gave y): sigmoid y(1-y), relu 1 where y > 0.
  virtual void activation_backward(size_t count, Activation f, const float* y, float* gradient) = 0;
  /// sums[j] = Σi x[i, j].
  virtual void column_sums(size_t rows, size_t columns, const float* x, float* sums) = 0;
  /// costs[i] = -log softmax(logits[i])[labels[i]]; logits become the gradient of the mean of the costs.
  virtual void softmax_cross_entropy(size_t rows, size_t columns, const uint8_t* labels, float* logits,
                                     float* costs) = 0;
  /// Patches of a `kernel` × `kernel` convolution with stride 1 and zero padding (SAME; kernel is odd). The patches are
  /// stored row by row in columns: [count · height · width, kernel · kernel · channels].
  virtual void im2col(const ImageShape& shape, size_t kernel, const float* images, float* columns) = 0;
  /// The way back: images[…] = sum of the entries of `columns` that im2col took from there.
  virtual void col2im(const ImageShape& shape, size_t kernel, const float* columns, float* images) = 0;
  /// 2 × 2 windows, stride 2; height and width are even. `pooled`: [count, height/2, width/2, channels].
  virtual void max_pool(const ImageShape& shape, const float* images, float* pooled) = 0;
  /// gradient (shape of images) = pooled_gradient where the window's maximum was (the first of equals), else 0.
  virtual void max_pool_backward(const ImageShape& shape, const float* images, const float* pooled_gradient,
                                 float* gradient) = 0;
  /// target = (((source[0] + source[1]) + …) · scale; 1 to kMaxBuffers sources; target may be source[0].
  virtual void sum(absl::Span<const float* const> sources, size_t count, float scale, float* target) = 0;
  /// Updates in one pass over memory.
  virtual void update(const UpdateArguments& arguments) = 0;
  /// CRC32C (as base/crc32c.h) of a buffer; waits for it.
  virtual absl::StatusOr<uint32_t> crc32c(const void* data, size_t bytes) = 0;

 protected:
  Compute() = default;
};

/// The host twin.
std::unique_ptr<Compute> host_compute();

/// The GPU with this ordinal (the driver's number, CUDA_VISIBLE_DEVICES respected).
/// Errors  NOT_FOUND: no such device; the text lists them. FAILED_PRECONDITION: no driver, one that is too old, or a
///         build without kernels; the text names what to install. UNAVAILABLE: the device does not answer.
absl::StatusOr<std::unique_ptr<Compute>> open_device(int ordinal);

}  // namespace gradrail::gpu
