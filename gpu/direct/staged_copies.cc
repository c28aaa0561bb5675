#include "gpu/direct/staged_copies.h"

#include <array>
#include <chrono>
#include <cstring>
#include <utility>

#include "base/check.h"
#include "base/status.h"
#include "fmt/format.h"
#include "gpu/compute/device_compute.h"
#include "gpu/compute/device_memory.h"
#include "gpu/compute/stream_marks.h"
#include "gpu/driver/native_error.h"
#include "gpu/kernels/formats.h"

namespace gradrail::gpu {
namespace {

/// Time limit of an answer, the same as that of a Compute.
const Duration kAnswerTimeout = DeviceOptions().answer_timeout;

/// Copies of one direction, in order.
class Lane {
 public:
  Lane(SharedContext context, Stream stream) : marks_(std::move(context), kAnswerTimeout), stream_(std::move(stream)) {}

  cuda::Result copy(const cuda::Functions& api, void* to, const void* from, size_t bytes) {
    const cuda::Result copied = api.cuMemcpyAsync(address_of(to), address_of(from), bytes, stream_.handle());
    return copied == cuda::kSuccess ? mark() : copied;
  }
  /// A mark behind each operation: buckets are sent one by one, as soon as each has ended.
  cuda::Result mark() { return marks_.mark(stream_, ++last_); }
  const Stream& stream() const { return stream_; }
  CopyTicket last() const { return last_; }
  StreamMarks& marks() { return marks_; }

 private:
  StreamMarks marks_;
  Stream stream_;
  CopyTicket last_ = 0;
};

/// Kernels by GradientFormat; fp32 has none.
using PackKernels = std::array<cuda::Function, 5>;

class DeviceCopies final : public StagedCopies {
 public:
  DeviceCopies(const DeviceCompute& compute, const PackKernels& pack_kernels, Stream down, Stream up)
      : compute_(compute),
        pack_kernels_(pack_kernels),
        context_(compute.context()),
        down_(context_, std::move(down)),
        up_(context_, std::move(up)) {}
  /// Copies in flight use memory that its owner reclaims next.
  ~DeviceCopies() override { finish().IgnoreError(); }

  // A copy that did not start has the ticket of the one before; after an error each ticket counts as done.
  CopyTicket download(void* to, const void* from, size_t bytes) override {
    start(down_, to, from, bytes, to);
    return down_.last();
  }
  CopyTicket pack(GradientFormat format, size_t count, const float* gradient, float* rest, void* packed) override {
    if (count == 0 || !error_.ok()) return down_.last();
    const cuda::Function kernel = pack_kernels_[static_cast<size_t>(format)];
    const cuda::Result enqueued = compute_.pack(down_.stream(), kernel, format, count, gradient, rest, packed);
    check(enqueued == cuda::kSuccess ? down_.mark() : enqueued, 0);
    return down_.last();
  }
  bool is_done(CopyTicket ticket) override {
    collect(down_);
    return !error_.ok() || down_.marks().is_reached(ticket);
  }
  void upload(void* to, const void* from, size_t bytes) override { start(up_, to, from, bytes, from); }
  absl::Status status() const override { return error_; }
  absl::Status finish() override {
    // A wait of the host orders the copies before all operations that are enqueued later, on any stream.
    for (Lane* lane : {&down_, &up_}) wait(*lane);
    return error_;
  }

 private:
  void start(Lane& lane, void* to, const void* from, size_t bytes, const void* host) {
    if (bytes == 0 || !error_.ok()) return;
    context_->make_current();
    // The driver would wait in its copy, where no deadline of ours ends it.
    if (is_pageable(*context_, host, bytes)) wait(lane);
    if (error_.ok()) check(lane.copy(context_->api(), to, from, bytes), bytes);
  }

  void wait(Lane& lane) {
    for (WaitInTurns turns; error_.ok() && !lane.marks().is_reached(lane.last()); turns.turn()) collect(lane);
  }

  void collect(Lane& lane) {
    if (!error_.ok()) return;
    const cuda::Result result = lane.marks().collect();
    if (result != cuda::kNotReady) check(result, 0);
    if (!error_.ok() || !lane.marks().is_overdue()) return;
    error_ = device_loss(fmt::format("{}: a copy or packing did not complete within {:.0f} s: the device is lost",
                                     context_->label(), std::chrono::duration<double>(kAnswerTimeout).count()));
    context_->abandon();  // a call that frees a resource on it may block for ever
  }

  void check(cuda::Result result, size_t bytes) {
    if (result == cuda::kSuccess) return;
    error_ =
        context_->status(result, bytes > 0 ? fmt::format("copying {} bytes", bytes) : std::string("a copy or packing"));
  }

  const DeviceCompute& compute_;
  const PackKernels pack_kernels_;
  const SharedContext context_;
  Lane down_, up_;
  absl::Status error_;  // the first
};

template <typename Element>
void pack_elements(size_t count, const float* gradient, float* rest, void* packed) {
  for (size_t i = 0; i < count; ++i)
    static_cast<Element*>(packed)[i] = kernels::pack_element<Element>(gradient[i], rest[i]);
}

template <int kCodes>
void pack_blocks(size_t count, const float* gradient, float* rest, void* packed) {
  using Format = kernels::Blocks<kCodes>;
  for (size_t block = 0; block < Format::block_count(count); ++block) {
    const size_t first = block * kernels::kBlock;
    static_cast<kernels::Bits16*>(packed)[block] = Format::pack_block(
        gradient + first, rest + first, static_cast<signed char*>(packed) + Format::codes_at(count, block),
        Format::elements_of(count, block));
  }
}

/// The host twin: done when it returns.
class HostCopies final : public StagedCopies {
 public:
  CopyTicket download(void* to, const void* from, size_t bytes) override {
    if (bytes > 0) std::memcpy(to, from, bytes);
    return 1;
  }
  CopyTicket pack(GradientFormat format, size_t count, const float* gradient, float* rest, void* packed) override {
    switch (format) {
      case GradientFormat::fp32:
        GRADRAIL_CHECK(false);
      case GradientFormat::bf16:
        pack_elements<kernels::Bf16>(count, gradient, rest, packed);
        break;
      case GradientFormat::int8:
        pack_blocks<127>(count, gradient, rest, packed);
        break;
      case GradientFormat::int4:
        pack_blocks<7>(count, gradient, rest, packed);
        break;
    }
    return 1;
  }
  bool is_done(CopyTicket) override { return true; }
  void upload(void* to, const void* from, size_t bytes) override { download(to, from, bytes); }
  absl::Status status() const override { return absl::OkStatus(); }
  absl::Status finish() override { return absl::OkStatus(); }
};

}  // namespace

absl::StatusOr<std::unique_ptr<StagedCopies>> staged_copies(Compute& compute) {
  auto* device = dynamic_cast<DeviceCompute*>(&compute);
  if (device == nullptr) return std::make_unique<HostCopies>();
  PackKernels pack_kernels = {};
  for (const GradientFormat format : {GradientFormat::bf16, GradientFormat::int8, GradientFormat::int4}) {
    GRADRAIL_ASSIGN_OR_RETURN(pack_kernels[static_cast<size_t>(format)], device->pack_kernel(format));
  }
  // A stream for each direction: a GPU has a copy engine for each of them.
  GRADRAIL_ASSIGN_OR_RETURN(Stream down, Stream::create(device->context()));
  GRADRAIL_ASSIGN_OR_RETURN(Stream up, Stream::create(device->context()));
  return std::make_unique<DeviceCopies>(*device, pack_kernels, std::move(down), std::move(up));
}

}  // namespace gradrail::gpu
