#include "gpu/compute/device_compute.h"

#include <algorithm>
#include <bit>
#include <utility>

#include "base/status.h"
#include "fmt/format.h"
#include "gpu/compute/device_memory.h"
#include "gpu/driver/native_error.h"

namespace gradrail::gpu {
namespace {

/// Number of blocks that fill every multiprocessor (2048 threads each) and leave a few waiting; kernels stride over the
/// rest.
constexpr size_t kBlocksPerMultiprocessor = 16;

}  // namespace

absl::StatusOr<std::unique_ptr<Compute>> open_device(int ordinal) {
  GRADRAIL_ASSIGN_OR_RETURN(const Driver* const driver, Driver::get());
  return DeviceCompute::open(*driver, ordinal);
}

absl::StatusOr<std::unique_ptr<DeviceCompute>> DeviceCompute::open(const Driver& driver, int ordinal,
                                                                   const DeviceOptions& options) {
  GRADRAIL_ASSIGN_OR_RETURN(const DeviceInfo device, find_device(driver, ordinal));
  GRADRAIL_ASSIGN_OR_RETURN(const SharedContext context, PrimaryContext::retain(driver, device));
  // The kernels first: a device that cannot run them is refused before it has streams.
  GRADRAIL_ASSIGN_OR_RETURN(Module module, Module::load(context));
  GRADRAIL_ASSIGN_OR_RETURN(Stream compute, Stream::create(context));
  GRADRAIL_ASSIGN_OR_RETURN(Stream copies, Stream::create(context));
  GRADRAIL_ASSIGN_OR_RETURN(Event behind, Event::create(context));
  return std::unique_ptr<DeviceCompute>(
      new DeviceCompute(context, std::move(module), std::move(compute), std::move(copies), std::move(behind), options));
}

DeviceCompute::DeviceCompute(SharedContext context, Module module, Stream compute, Stream copies, Event behind,
                             const DeviceOptions& options)
    : context_(std::move(context)),
      options_(options),
      module_(std::move(module)),
      compute_(std::move(compute)),
      copies_(std::move(copies)),
      behind_(std::move(behind)),
      marks_(context_, options.answer_timeout) {}

/// Freeing waits for the device without a deadline: the destructor therefore waits first, with one.
DeviceCompute::~DeviceCompute() { finish().IgnoreError(); }

absl::StatusOr<std::unique_ptr<Memory>> DeviceCompute::allocate(size_t bytes) {
  if (error_lasts_) return error_;
  return DeviceMemory::allocate(context_, bytes);
}

absl::StatusOr<std::unique_ptr<Pin>> DeviceCompute::pin(void* data, size_t bytes) {
  if (error_lasts_) return error_;
  return HostPin::pin(context_, data, bytes);
}

void DeviceCompute::upload(void* to, const void* from, size_t bytes) {
  if (bytes == 0 || !begin() || !wait_if_pageable(from, bytes)) return;
  const cuda::Result copied = context_->api().cuMemcpyAsync(address_of(to), address_of(from), bytes, compute_.handle());
  if (copied != cuda::kSuccess) fail(copied, fmt::format("copying {} bytes to it", bytes));
}

void DeviceCompute::launch_kernel(const char* kernel, size_t work_items, void** arguments) {
  // CUDA refuses a launch without blocks.
  if (work_items == 0 || !begin()) return;
  const absl::StatusOr<cuda::Function> function = module_.find(kernel);
  if (!function.ok()) return fail(function.status());
  check(enqueue(compute_, *function, work_items, arguments), kernel);
}

cuda::Result DeviceCompute::enqueue(const Stream& stream, cuda::Function kernel, size_t work_items, void** arguments,
                                    unsigned block_threads) const {
  // A driver without the attribute reports 0 multiprocessors.
  const size_t multiprocessors = static_cast<size_t>(std::max(1, context_->device().multiprocessors));
  const size_t most = kBlocksPerMultiprocessor * multiprocessors * (kThreadsPerBlock / block_threads);
  const size_t blocks = std::min((work_items + block_threads - 1) / block_threads, most);
  return context_->api().cuLaunchKernel(kernel, static_cast<unsigned>(blocks), 1, 1, block_threads, 1, 1, 0,
                                        stream.handle(), arguments, nullptr);
}

void DeviceCompute::product(const ProductShape& shape, const float* a, const float* b, float* c, bool accumulate) {
  Blas* const products = begin() ? blas() : nullptr;
  if (products != nullptr) check(products->product(shape, a, b, c, accumulate));
}

void DeviceCompute::column_sums(size_t rows, size_t columns, const float* x, float* sums) {
  Blas* const products = begin() ? blas() : nullptr;
  const float* const units = products != nullptr ? ones(rows) : nullptr;
  if (units != nullptr) check(products->column_sums(rows, columns, x, units, sums));
}

/// Creates Blas at the first product, not before: it takes memory that a shard, which has none, can use better.
Blas* DeviceCompute::blas() {
  if (blas_ != nullptr) return blas_.get();
  absl::StatusOr<std::unique_ptr<Blas>> made = Blas::create(context_, compute_);
  if (!made.ok()) {
    check(made.status());
    return nullptr;
  }
  blas_ = *std::move(made);
  return blas_.get();
}

void DeviceCompute::check(const absl::Status& products) {
  if (products.ok()) return;
  const cuda::Result device = compute_.query();
  if (is_lasting(device)) {
    fail(device, "a product of cuBLAS");
  } else {
    fail(products);
  }
}

std::byte* DeviceCompute::grow(std::unique_ptr<Memory>& kept, size_t bytes) {
  absl::StatusOr<std::unique_ptr<Memory>> grown = allocate(bytes);
  if (!grown.ok()) {
    fail(grown.status());
    return nullptr;
  }
  // Operations in flight may still use the former memory.
  if (kept != nullptr) retired_.push_back(std::move(kept));
  kept = *std::move(grown);
  return kept->data();
}

const float* DeviceCompute::ones(size_t count) {
  const size_t bytes = std::max<size_t>(1, count) * sizeof(float);
  if (ones_ != nullptr && ones_->bytes() >= bytes) return ones_->as<float>();
  const std::byte* const data = grow(ones_, bytes);
  if (data == nullptr) return nullptr;
  const bool filled = check(context_->api().cuMemsetD32Async(address_of(data), std::bit_cast<uint32_t>(1.0f),
                                                             bytes / sizeof(float), compute_.handle()),
                            "filling a vector of ones");
  if (filled) return ones_->as<float>();
  retired_.push_back(std::move(ones_));  // its content is not ones
  return nullptr;
}

std::byte* DeviceCompute::scratch(size_t bytes) {
  return scratch_ != nullptr && scratch_->bytes() >= bytes ? scratch_->data() : grow(scratch_, bytes);
}

bool DeviceCompute::begin() {
  if (!error_.ok()) return false;
  context_->make_current();
  return true;
}

void DeviceCompute::fail(const absl::Status& error) {
  // The first error is the cause; those that follow are its effects.
  if (error_.ok()) error_ = error;
}

/// No mark of a lost device is reached.
void DeviceCompute::give_up() {
  error_lasts_ = true;
  marks_.forget();
}

bool DeviceCompute::fail(cuda::Result result, std::string_view operation) {
  const bool lasts = is_lasting(result);
  // The loss of a device hides earlier errors.
  if (error_.ok() || (lasts && !error_lasts_)) error_ = context_->status(result, operation);
  // No operation can succeed any more: waits must not continue for marks that are never reached.
  if (lasts) give_up();
  return false;
}

absl::Status DeviceCompute::take_error() { return error_lasts_ ? error_ : std::exchange(error_, absl::OkStatus()); }

}  // namespace gradrail::gpu
