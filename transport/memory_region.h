#pragma once

#include <cstdint>
#include <string>

#include "base/memory.h"

namespace gradrail::transport {

/// Rights of a peer that holds the region's key.
enum class Access : uint8_t { local = 0, remote_read = 1, remote_write = 2, remote_read_write = 3 };

constexpr bool allows(Access granted, Access wanted) {
  return (static_cast<uint8_t>(granted) & static_cast<uint8_t>(wanted)) == static_cast<uint8_t>(wanted);
}

/// Memory that a Context may read and write and, as far as `access` allows, its peers too. Registration ends with the
/// object; it must outlive every operation on it and not the Context. The memory itself belongs to the caller.
class MemoryRegion {
 public:
  virtual ~MemoryRegion() = default;
  MemoryRegion(const MemoryRegion&) = delete;
  MemoryRegion& operator=(const MemoryRegion&) = delete;

  MemorySpan span() const { return span_; }
  Access access() const { return access_; }
  /// Opaque bytes that let a peer of the same transport access this region: every holder has the rights of `access`.
  const std::string& key() const { return key_; }

 protected:
  MemoryRegion(MemorySpan span, Access access, std::string key) : span_(span), access_(access), key_(std::move(key)) {}

 private:
  MemorySpan span_;
  Access access_;
  std::string key_;
};

}  // namespace gradrail::transport
