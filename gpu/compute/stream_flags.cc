#include "gpu/compute/stream_flags.h"

#include <sys/mman.h>

#include <atomic>
#include <cerrno>
#include <cstring>
#include <utility>

#include "base/check.h"
#include "base/status.h"
#include "fmt/format.h"

namespace gradrail::gpu {
namespace {

constexpr size_t kBytes = StreamFlags::kCount * sizeof(uint64_t);  // size of one page

}  // namespace

absl::StatusOr<std::unique_ptr<StreamFlags>> StreamFlags::create(const SharedContext& context) {
  if (!context->device().stream_writes) {
    return absl::FailedPreconditionError(
        fmt::format("{}: its driver offers no writes of a stream into host memory", context->label()));
  }
  // The flags have a separate page: the driver pins whole pages.
  void* const page = mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (page == MAP_FAILED)
    return absl::ResourceExhaustedError(fmt::format("a page for flags: {}", std::strerror(errno)));
  // The object owns the page before the pin, so that the return below unmaps it.
  std::unique_ptr<StreamFlags> flags(new StreamFlags(context, static_cast<uint64_t*>(page)));
  GRADRAIL_ASSIGN_OR_RETURN(flags->pin_, HostPin::pin(context, page, kBytes));
  return flags;
}

StreamFlags::~StreamFlags() {
  pin_.reset();
  // A device that does not answer may write later: the page then stays.
  if (!context_->is_abandoned()) munmap(words_, kBytes);
}

cuda::Result StreamFlags::write(const Stream& stream, size_t word, uint64_t value) const {
  GRADRAIL_CHECK(word < kCount);
  return context_->api().cuStreamWriteValue64_v2(stream.handle(), address_of(words_ + word), value, 0);
}

uint64_t StreamFlags::read(size_t word) const {
  return std::atomic_ref<uint64_t>(words_[word]).load(std::memory_order_acquire);
}

void StreamFlags::clear(size_t word) { std::atomic_ref<uint64_t>(words_[word]).store(0, std::memory_order_release); }

}  // namespace gradrail::gpu
