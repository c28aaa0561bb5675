#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "ps/protocol/exchange_layout.h"

namespace gradrail::ps {

/// Packs the parameters of answers over one path in bf16 or delta (ps/protocol/return_format.h). A delta needs memory:
/// 2 bytes for each element of the shard, for each path.
///
/// Invariants
///   1. The elements held of a bucket are those of the last answer to a push over this path.
///   2. A delta changes the answer that the worker has named in its push. Each other answer is whole. A worker that
///      comes over another path, or to another shard, names none that this path has sent.
/// Units    `offset` counts elements from the first of the shard.
/// Threads  Owner thread of the shard.
class ReturnEncoder {
 public:
  ReturnEncoder(ReturnFormat format, uint32_t bucket_count, uint64_t elements);

  /// The header of a bucket has arrived: the next answer is to it. Answers to others than pushes may be sent twice, and
  /// the second one may arrive beside an exchange that follows. Therefore no delta follows them.
  void on_arrival(const SlotHeader& header);

  struct Packed {
    uint32_t bytes = 0;
    uint16_t answer = 0;  ///< ReturnHeader::answer
  };
  /// Shapes  target: whole_return_bytes(fresh.size()).
  Packed pack(uint32_t bucket, uint64_t offset, absl::Span<const float> fresh, std::byte* target);

 private:
  struct Bucket {
    uint16_t answer = 0;     ///< the last one; 0: none to a push
    uint32_t base = 0;       ///< that the worker has
    bool is_pushed = false;  ///< the next answer is to a push
  };
  ReturnFormat format_;
  std::vector<Bucket> buckets_;
  std::vector<uint16_t> held_;  ///< by element; empty in bf16
};

}  // namespace gradrail::ps
