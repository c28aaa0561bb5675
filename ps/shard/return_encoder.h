#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "ps/protocol/exchange_layout.h"

namespace gradrail::ps {

/// The elements of a shard in bf16, as its answers in delta show them. All paths share them, so that their memory does
/// not depend on the number of workers: 4 bytes for each element of the shard.
///
/// The contents of a bucket are numbered. Each element has a stamp: the number of the content in which it has changed
/// last. A delta to a content consists of the elements with later stamps. It is exact for each worker that has this
/// content, also if other workers have been answered in between.
///
/// Stamps have 16 bits and count from the first number of a period. A new period begins after 65,535 contents. No delta
/// leads from a content of an earlier period.
///
/// Units    `offset` counts elements from the first of the shard.
/// Threads  Owner thread of the shard.
class ReturnedElements {
 public:
  /// Removes all contents. The memory is allocated when it is used.
  void reset(uint32_t bucket_count, uint64_t elements);

  /// The parameters of the bucket have changed after an answer.
  void on_changed(uint32_t bucket) { buckets_[bucket].is_outdated = true; }

  /// Follows the parameters of a bucket, if they have changed. Returns the number of the present content, from 1.
  uint64_t follow(uint32_t bucket, uint64_t offset, absl::Span<const float> parameters);

  /// Writes the present content of a bucket, as a delta to the content `base` if that is shorter. Returns the bytes.
  /// `base`: 0: none. follow() has returned the present content.
  /// Shapes  target: whole_return_bytes(count).
  size_t write(uint32_t bucket, uint64_t offset, size_t count, uint64_t base, std::byte* target) const;

 private:
  struct Bucket {
    uint64_t content = 0;     ///< the present number; 0: none
    uint64_t period = 0;      ///< the number from which stamps count
    bool is_outdated = true;  ///< the parameters have changed since
  };
  std::vector<Bucket> buckets_;
  uint64_t elements_ = 0;
  std::vector<uint16_t> held_;    ///< value of each element
  std::vector<uint16_t> stamps_;  ///< stamp of each element
};

/// Packs the parameters of answers over one path in bf16 or delta (ps/protocol/return_format.h). The elements that a
/// delta changes are common to all paths.
///
/// Invariants
///   1. The content of a bucket is that of the last answer to a push over this path.
///   2. A delta changes the answer that the worker has named in its push. Each other answer is whole. A worker on
///      another path, or at another shard, names none that this path has sent.
/// Units    `offset` counts elements from the first of the shard.
/// Threads  Owner thread of the shard.
class ReturnEncoder {
 public:
  /// `elements`: of the shard; they outlive this.
  ReturnEncoder(ReturnFormat format, uint32_t bucket_count, ReturnedElements& elements);

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
    uint64_t content = 0;    ///< content of the last answer (ReturnedElements)
    uint16_t answer = 0;     ///< the last one; 0: none to a push
    uint32_t base = 0;       ///< answer that the worker has
    bool is_pushed = false;  ///< the next answer is to a push
  };
  ReturnFormat format_;
  std::vector<Bucket> buckets_;
  ReturnedElements* elements_;
};

}  // namespace gradrail::ps
