#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "transport/memory_region.h"
#include "transport/tcp/frame.h"

namespace gradrail::transport::tcp {

/// Content of a key: the location of the region, the proof that its holder may use it, and its size.
struct RegionKey {
  uint32_t region = 0;
  uint32_t epoch = 0;
  uint64_t token = 0;
  uint64_t bytes = 0;

  std::string encode() const;
  /// Errors  INVALID_ARGUMENT: not a key of this transport, or damaged.
  static absl::StatusOr<RegionKey> parse(std::string_view key);
};

/// The regions of one Context by number, and the one place that decides what a peer may touch.
class RegionTable {
 public:
  /// Errors  INVALID_ARGUMENT: not host memory.
  absl::StatusOr<std::unique_ptr<MemoryRegion>> add(MemorySpan memory, Access access);
  void remove(uint32_t region);

  /// Where the bytes named by a put or get_request frame lie.
  /// Errors  PERMISSION_DENIED: the reason, as the peer may read it.
  absl::StatusOr<std::byte*> resolve(const FrameHeader& frame, Access wanted) const;

  /// Whether the region that resolve() accepted is still registered.
  bool alive(uint32_t region, uint32_t epoch) const {
    return region < slots_.size() && slots_[region].used && slots_[region].epoch == epoch;
  }

 private:
  struct Slot {
    MemorySpan memory;
    Access access = Access::local;
    uint64_t token = 0;
    uint32_t epoch = 0;  ///< counts the regions that this slot has held: an old key does not open a new region
    bool used = false;
  };
  std::vector<Slot> slots_;
  std::vector<uint32_t> free_;
};

}  // namespace gradrail::transport::tcp
