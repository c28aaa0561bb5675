#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "absl/status/statusor.h"
#include "gpu/compute/device_memory.h"
#include "gpu/driver/stream.h"

namespace gradrail::gpu {

/// Words in host memory that a stream writes when it reaches them (cuStreamWriteValue64). The host reads them without a
/// call of the driver, which costs more and takes a lock.
/// Threads  write(), clear(): one owner. read(): any.
class StreamFlags {
 public:
  static constexpr size_t kCount = 512;

  /// All words are 0. The streams that write must have ended their work before this object ends.
  /// Errors  FAILED_PRECONDITION: the device has no such writes. Others as HostPin::pin().
  static absl::StatusOr<std::unique_ptr<StreamFlags>> create(const SharedContext& context);
  ~StreamFlags();
  StreamFlags(const StreamFlags&) = delete;
  StreamFlags& operator=(const StreamFlags&) = delete;

  /// Sets the word to the value behind all operations that are on the stream. Their results are then visible.
  cuda::Result write(const Stream& stream, size_t word, uint64_t value) const;
  uint64_t read(size_t word) const;
  /// No write of the word may be under way.
  void clear(size_t word);

 private:
  StreamFlags(SharedContext context, uint64_t* words) : context_(std::move(context)), words_(words) {}

  const SharedContext context_;
  uint64_t* const words_;
  std::unique_ptr<HostPin> pin_;
};

}  // namespace gradrail::gpu
