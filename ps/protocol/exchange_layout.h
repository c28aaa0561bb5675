#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "ps/protocol/optimizer_settings.h"
#include "ps/protocol/push_format.h"

namespace gradrail::ps {

// Layout of registered memory during an exchange. All fields are little-endian, as every supported host is.
//
//   slot region of one worker at one shard (written by that worker alone):
//     [SlotHeader × buckets][place 0][place 1]…, each for the payload of one bucket in fp32 (slot_places.h)
//     Places stay unused if the shard maps the worker's gradients (shm). If the transport reaches the shard's GPU,
//     the places are in a separate region there, from which parameters leave.
//   return region of one worker for one shard (in the worker's memory, written by that shard alone):
//     [ReturnHeader × buckets], in bf16 and delta then [packed parameters of bucket 0][those of bucket 1]… at
//     return_payload_at() (return_format.h). The worker unpacks them.
//   Both are at least kCheckBytes long: a path is used only after a pattern was put each way (path_check.h).
//   parameters and gradients at the worker: all elements of the model, flattened; each shard accesses its range only.
//   If the push has another format, the packed gradients follow the gradients, bucket by bucket, at gradient_at().
//   Initial values stay fp32.
//
// A push is put(payload), put(SlotHeader, immediate = bucket); the way back is put(parameters), put(ReturnHeader,
// immediate = bucket). The puts of each side are ordered: when the header has arrived, so have the bytes before it.
//
//   variables in a worker's GPU memory, if a shard maps them or a NIC reaches them:
//     [parameters][gap][gradients][gap][packed gradients][check out][check in]
//   device_gradients_at() and device_check_at() have the offsets. The packed gradients lie at gradient_at() behind the
//   first gradient, as in host memory. The last two, of kCheckBytes each, hold the patterns that leave and arrive. Both
//   directions are checked with the registration that exchanges use, while an exchange may be under way over another
//   path.

/// Element at which the gradients begin behind `elements` parameters: aligned to a cache line, so that both can be read
/// 16 bytes at a time.
constexpr uint64_t device_gradients_at(uint64_t elements) { return (elements + 63) / 64 * 64; }

/// Offset in bytes of the bucket that begins with this element in this format, from the first gradient of the worker.
constexpr uint64_t gradient_at(uint64_t elements, uint64_t element, PushFormat format) {
  const uint64_t first = format == PushFormat::fp32 ? 0 : device_gradients_at(elements) * sizeof(float);
  return first + element * place_bytes(format);
}

/// Larger than the packets of any network: a path that loses only large packets fails the check.
inline constexpr size_t kCheckBytes = 16 << 10;

/// Byte at which the space for patterns begins.
constexpr uint64_t device_check_at(uint64_t elements, PushFormat push) {
  const uint64_t gradients_at = device_gradients_at(elements);
  const uint64_t packed_at = 2 * gradients_at * sizeof(float);
  return packed_at + (push == PushFormat::fp32 ? 0 : gradients_at * place_bytes(push));
}
/// Bytes of the whole block.
constexpr uint64_t device_block_bytes(uint64_t elements, PushFormat push) {
  return device_check_at(elements, push) + 2 * kCheckBytes;
}

/// Immediate of the pattern. Some transports carry 20 bits only.
inline constexpr uint64_t kCheckImmediate = (1 << 20) - 1;
/// Smaller immediates are bucket indexes.
inline constexpr uint64_t kMaxBuckets = kCheckImmediate;

enum class ArrivalKind : uint16_t {
  push = 1,        ///< the payload is a gradient: apply it, return fresh parameters
  pull = 2,        ///< no payload: return parameters as soon as they are initialized
  initialise = 3,  ///< the payload is the initial value, from the chief
  absent = 4,      ///< no payload: the worker takes part in the step without a gradient, and gets its parameters
};

/// Whether the step of a bucket waits for it.
constexpr bool is_of_step(ArrivalKind kind) { return kind == ArrivalKind::push || kind == ArrivalKind::absent; }
constexpr bool has_payload(ArrivalKind kind) { return kind == ArrivalKind::push || kind == ArrivalKind::initialise; }

/// Announces a payload. It fills a cache line: the shard polls none that a neighbor writes. The short way of a push
/// compares the fields before base_answer (ShardExchange::push_lone).
struct alignas(64) SlotHeader {
  static constexpr uint32_t kMagic = 0x544f4c53;  // "SLOT"
  uint32_t magic = kMagic;
  ArrivalKind kind{};
  uint8_t has_crc = 0;
  PushFormat::Kind format = PushFormat::fp32;  ///< format of a push
  uint32_t bucket = 0;
  uint32_t payload_bytes = 0;
  uint64_t step = 0;          ///< step of the worker, counted from 1
  uint64_t incarnation = 0;   ///< incarnation of the worker: a restart begins another one
  uint64_t base_version = 0;  ///< version of the bucket the gradient was computed on
  uint32_t crc32c = 0;        ///< CRC32C of the payload, if has_crc
  float rate = kAgreedRate;   ///< learning rate of this step; in sync all workers must have the same
  float weight = 1.0f;        ///< weight of the gradient in the mean of its step, more than 0
  uint32_t base_answer = 0;   ///< ReturnHeader::answer that the worker has of this bucket; 0: none
};

/// Answers a SlotHeader.
struct alignas(64) ReturnHeader {
  static constexpr uint32_t kMagic = 0x4e525452;  // "RTRN"
  uint32_t magic = kMagic;
  uint32_t bucket = 0;
  uint64_t step = 0;           ///< answers the SlotHeader of this step
  uint64_t version = 0;        ///< number of updates applied to this bucket
  uint32_t staleness = 0;      ///< updates between base_version and this worker's own
  uint32_t payload_bytes = 0;  ///< size of packed parameters in the return region; 0: they are fp32
  uint64_t incarnation = 0;
  uint32_t crc32c = 0;
  uint8_t has_crc = 0;
  uint8_t dropped = 0;  ///< the gradient was too late for the sum
  /// Numbers the answers of this bucket on this path, from 1 to 65,535 and again from 1. A delta changes the answer
  /// before it. 0: no delta may follow.
  uint16_t answer = 0;
  uint64_t waited_ns = 0;  ///< time from the arrival of the gradient to the decision; 0 in async, where no worker waits
  uint64_t next_step = 0;  ///< ssp, answer to a pull or an offer: the step that the worker may push next; else 0
};

static_assert(sizeof(SlotHeader) == 64 && std::is_trivially_copyable_v<SlotHeader>);
static_assert(sizeof(ReturnHeader) == 64 && std::is_trivially_copyable_v<ReturnHeader>);

}  // namespace gradrail::ps
