#include "gpu/driver/stream.h"

#include <utility>

namespace gradrail::gpu {

absl::StatusOr<Event> Event::create(const SharedContext& context) {
  Event event;
  if (const cuda::Result result = event.make(context); result != cuda::kSuccess) {
    return context->status(result, "making an event");
  }
  return event;
}

cuda::Result Event::make(SharedContext context) {
  context->make_current();
  // An event without timing costs less, and only its order is needed.
  const cuda::Result result = context->api().cuEventCreate(&handle_, cuda::kEventDisableTiming);
  if (result == cuda::kSuccess) context_ = std::move(context);
  return result;
}

Event::Event(Event&& other) noexcept { *this = std::move(other); }

Event& Event::operator=(Event&& other) noexcept {
  // A swap: the destructor of `other` frees what this object had.
  std::swap(context_, other.context_);
  std::swap(handle_, other.handle_);
  return *this;
}

Event::~Event() {
  if (handle_ == nullptr || context_->is_abandoned()) return;
  context_->make_current();
  context_->api().cuEventDestroy_v2(handle_);
}

cuda::Result Event::query() const {
  context_->make_current();
  return context_->api().cuEventQuery(handle_);
}

absl::StatusOr<Stream> Stream::create(SharedContext context) {
  context->make_current();
  Stream stream;
  // Non-blocking: without an implicit order with stream 0, which other libraries of the process use.
  const cuda::Result result = context->api().cuStreamCreate(&stream.handle_, cuda::kStreamNonBlocking);
  if (result != cuda::kSuccess) return context->status(result, "making a stream");
  stream.context_ = std::move(context);
  return stream;
}

Stream::Stream(Stream&& other) noexcept { *this = std::move(other); }

Stream& Stream::operator=(Stream&& other) noexcept {
  std::swap(context_, other.context_);
  std::swap(handle_, other.handle_);
  return *this;
}

Stream::~Stream() {
  if (handle_ == nullptr || context_->is_abandoned()) return;
  context_->make_current();
  context_->api().cuStreamDestroy_v2(handle_);
}

cuda::Result Stream::record(const Event& event) const { return context_->api().cuEventRecord(event.handle(), handle_); }

cuda::Result Stream::query() const {
  context_->make_current();
  return context_->api().cuStreamQuery(handle_);
}

cuda::Result Stream::wait_for(const Event& event) const {
  return context_->api().cuStreamWaitEvent(handle_, event.handle(), 0);
}

}  // namespace gradrail::gpu
