#pragma once

#include <cassert>
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "absl/status/status.h"
#include "transport/connection.h"

namespace gradrail::transport::common {

/// Whether `bytes` bytes at `offset` are inside `size` bytes. No sum is built, because a peer's numbers could wrap it.
constexpr bool is_inside(uint64_t offset, uint64_t bytes, uint64_t size) {
  return offset <= size && bytes <= size - offset;
}

/// Errors of the checks below. They are separate from the checks, which each post runs.
absl::Status no_local_region(std::string_view transport);
absl::Status outside_region(std::string_view transport, std::string_view end, uint64_t offset, uint64_t bytes,
                            uint64_t region_bytes);

/// Errors  INVALID_ARGUMENT: a slice outside its region, or bytes of no region.
inline absl::Status check_local(std::string_view transport, const LocalSlice& slice) {
  if (slice.region == nullptr) return slice.bytes == 0 ? absl::OkStatus() : no_local_region(transport);
  const size_t size = slice.region->span().bytes;
  if (is_inside(slice.offset, slice.bytes, size)) [[likely]] {
    return absl::OkStatus();
  }
  return outside_region(transport, "local", slice.offset, slice.bytes, size);
}

/// Errors  INVALID_ARGUMENT: outside the peer's region of this size.
inline absl::Status check_remote(std::string_view transport, const RemoteSlice& slice, uint64_t bytes,
                                 uint64_t region_bytes) {
  if (is_inside(slice.offset, bytes, region_bytes)) [[likely]] {
    return absl::OkStatus();
  }
  return outside_region(transport, "remote", slice.offset, bytes, region_bytes);
}

/// The begin of a checked slice; null for a slice of no bytes.
inline std::byte* address_of(const LocalSlice& slice) {
  if (slice.bytes == 0) return nullptr;
  assert(is_inside(slice.offset, slice.bytes, slice.region->span().bytes));
  return slice.region->span().data + slice.offset;
}

}  // namespace gradrail::transport::common
