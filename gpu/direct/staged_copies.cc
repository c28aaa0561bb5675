#include "gpu/direct/staged_copies.h"

#include <bit>
#include <chrono>
#include <cmath>
#include <cstring>
#include <utility>

#include "base/status.h"
#include "fmt/format.h"
#include "gpu/compute/device_compute.h"
#include "gpu/compute/device_memory.h"
#include "gpu/compute/stream_marks.h"
#include "gpu/driver/native_error.h"

namespace gradrail::gpu {
namespace {

/// As long as a Compute is patient with its device.
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

class DeviceCopies final : public StagedCopies {
 public:
  DeviceCopies(const DeviceCompute& compute, cuda::Function pack_kernel, Stream down, Stream up)
      : compute_(compute),
        pack_kernel_(pack_kernel),
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
  CopyTicket pack_bf16(size_t count, const float* gradient, float* rest, uint16_t* packed) override {
    if (count == 0 || !error_.ok()) return down_.last();
    const cuda::Result enqueued = compute_.pack_bf16(down_.stream(), pack_kernel_, count, gradient, rest, packed);
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
  const cuda::Function pack_kernel_;
  const SharedContext context_;
  Lane down_, up_;
  absl::Status error_;  // the first
};

uint16_t narrow(float value) {
  if (std::isnan(value)) return 0x7fc0;  // as on a GPU, which does not keep the bits of a NaN in a sum
  const auto bits = std::bit_cast<uint32_t>(value);
  // To nearest, ties to even: the added half is one less where the kept part is even.
  return static_cast<uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

/// The host twin: done when it returns.
class HostCopies final : public StagedCopies {
 public:
  CopyTicket download(void* to, const void* from, size_t bytes) override {
    if (bytes > 0) std::memcpy(to, from, bytes);
    return 1;
  }
  CopyTicket pack_bf16(size_t count, const float* gradient, float* rest, uint16_t* packed) override {
    for (size_t i = 0; i < count; ++i) {
      const float exact = gradient[i] + rest[i];
      packed[i] = narrow(exact);
      const float left_out = exact - std::bit_cast<float>(static_cast<uint32_t>(packed[i]) << 16);
      rest[i] = std::isfinite(left_out) ? left_out : 0.0f;
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
  GRADRAIL_ASSIGN_OR_RETURN(const cuda::Function pack_kernel, device->pack_kernel());
  // A stream for each direction: a GPU has a copy engine for each of them.
  GRADRAIL_ASSIGN_OR_RETURN(Stream down, Stream::create(device->context()));
  GRADRAIL_ASSIGN_OR_RETURN(Stream up, Stream::create(device->context()));
  return std::make_unique<DeviceCopies>(*device, pack_kernel, std::move(down), std::move(up));
}

}  // namespace gradrail::gpu
