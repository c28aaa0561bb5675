#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>

namespace gradrail::ps {

// What lies in registered memory during an exchange. All fields little-endian, as on every host this builds for.
//
//   slot region of one worker at one shard (written by that worker alone):
//     [SlotHeader × buckets][payload of bucket 0][payload of bucket 1]…      payload not used where the shard maps the
//                                                                            worker's gradients (shm)
//     Where the transport reaches the shard's GPU, payloads lie there instead, in a region of their own, from the
//     shard's first element on, and parameters leave from there.
//   return region of one worker for one shard (in the worker's memory, written by that shard alone):
//     [ReturnHeader × buckets]
//   Both are at least kCheckBytes long: before a path is trusted, a pattern is put over it each way (path_check.h).
//   parameters and gradients at the worker: all elements of the model, flattened; each shard touches its range alone.
//
// A push is put(payload), put(SlotHeader, immediate = bucket); the way back is put(parameters), put(ReturnHeader,
// immediate = bucket). Both sides' puts are ordered, so the notice of the header says that the bytes are there.

//   variables in a worker's GPU memory, where a shard maps them or a NIC reaches them:
//     [parameters][gap][gradients][gap][check out][check in]     device_gradients_at(), device_check_at()
//   The last two, of kCheckBytes each, are what the patterns come out of and go into: both directions are tried over
//   the very registration that exchanges use, while an exchange over another path may be under way.

/// Element at which the gradients begin that lie behind `elements` parameters: on a line of memory, so that both are
/// read 16 bytes at a time.
constexpr uint64_t device_gradients_at(uint64_t elements) { return (elements + 63) / 64 * 64; }

/// More than any network's packet: a path that loses large packets alone fails the check.
inline constexpr size_t kCheckBytes = 16 << 10;

/// Element at which the space for patterns begins.
constexpr uint64_t device_check_at(uint64_t elements) { return 2 * device_gradients_at(elements); }
/// Of everything.
constexpr uint64_t device_block_bytes(uint64_t elements) {
  return device_check_at(elements) * sizeof(float) + 2 * kCheckBytes;
}

/// Announces the pattern. A transport may carry as few as 20 bits.
inline constexpr uint64_t kCheckImmediate = (1 << 20) - 1;
/// Immediates below are bucket indexes.
inline constexpr uint64_t kMaxBuckets = kCheckImmediate;

enum class ArrivalKind : uint16_t {
  push = 1,        ///< payload is a gradient: apply it, return fresh parameters
  pull = 2,        ///< no payload: return parameters as soon as they are initialised
  initialise = 3,  ///< payload is the initial value, from the chief
};

struct alignas(64) SlotHeader {
  static constexpr uint32_t kMagic = 0x544f4c53;  // "SLOT"
  uint32_t magic = kMagic;
  ArrivalKind kind{};
  uint16_t has_crc = 0;
  uint32_t bucket = 0;
  uint32_t payload_bytes = 0;
  uint64_t step = 0;          ///< the worker's own count of exchanges, from 1
  uint64_t incarnation = 0;   ///< of the worker: a restarted worker is another one
  uint64_t base_version = 0;  ///< version of the bucket the gradient was computed on
  uint32_t crc32c = 0;        ///< of the payload, when has_crc
  uint32_t reserved[5] = {};
};

struct alignas(64) ReturnHeader {
  static constexpr uint32_t kMagic = 0x4e525452;  // "RTRN"
  uint32_t magic = kMagic;
  uint32_t bucket = 0;
  uint64_t step = 0;       ///< answers the SlotHeader of this step
  uint64_t version = 0;    ///< updates applied to this bucket so far
  uint64_t staleness = 0;  ///< updates between base_version and this worker's own
  uint64_t incarnation = 0;
  uint32_t crc32c = 0;
  uint16_t has_crc = 0;
  uint16_t dropped = 0;  ///< the gradient came too late to be summed
  uint64_t waited_ns =
      0;  ///< from its arrival at the shard until all it waits for was there, where a mode has workers wait
  uint32_t reserved[2] = {};
};

static_assert(sizeof(SlotHeader) == 64 && std::is_trivially_copyable_v<SlotHeader>);
static_assert(sizeof(ReturnHeader) == 64 && std::is_trivially_copyable_v<ReturnHeader>);

}  // namespace gradrail::ps
