#pragma once

#include <cstddef>
#include <cstdint>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "base/memory.h"
#include "ps/protocol/exchange_layout.h"
#include "ps/protocol/shard_map.h"

namespace gradrail::worker {

/// Unpacks answers in bf16 and delta (ps/protocol/return_format.h) into the parameters of a worker. For a delta it
/// keeps the elements of the last answers, 2 bytes for each. The program may write into its parameters.
/// Threads  Owner thread.
class ReturnDecoder {
 public:
  /// `place` is called before the first access to the memory; it may be empty.
  /// Errors  RESOURCE_EXHAUSTED: no memory.
  absl::Status allocate(ReturnFormat format, uint64_t elements, const MemoryBinder& place);

  /// `header`: a copy, because its memory is another process's to write. `base`: ReturnHeader::answer of the parameters
  /// that the worker has of this bucket. `packed`: the bucket's place in the return region.
  /// Shapes  parameters: [range.count].
  /// Errors  DATA_LOSS: the length, the checksum, or the answer that a delta changes is wrong; nothing is written. The
  ///         text continues "parameters of a bucket …".
  absl::Status unpack(const ps::ReturnHeader& header, uint32_t base, const std::byte* packed, ps::ElementRange range,
                      absl::Span<float> parameters);

 private:
  SharedMemory held_;  ///< previous parameters by element, bf16; empty without delta
};

}  // namespace gradrail::worker
