#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "transport/common/region_table.h"
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

/// Errors  INVALID_ARGUMENT: not host memory.
absl::StatusOr<std::unique_ptr<MemoryRegion>> register_region(common::RegionTable& table, MemorySpan memory,
                                                              Access access);

/// The address of the bytes that a put or get_request frame names.
/// Errors  PERMISSION_DENIED: the reason, which the peer may read.
absl::StatusOr<std::byte*> find_target(const common::RegionTable& table, const FrameHeader& frame, Access wanted);

}  // namespace gradrail::transport::tcp
