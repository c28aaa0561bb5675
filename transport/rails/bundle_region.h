#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "transport/memory_region.h"

namespace gradrail::transport::rails {

/// The key of a region that several contexts have registered. One context alone has its own key.
std::string join_keys(const std::vector<std::string>& keys);

/// The part of a key that the peer's context `child` has made. A key of one context is that part itself.
/// Errors  INVALID_ARGUMENT: damaged, or without such a part.
absl::StatusOr<std::string> key_of(std::string_view key, uint32_t child);

/// Memory that each of several contexts has registered.
class BundleRegion final : public MemoryRegion {
 public:
  BundleRegion(MemorySpan span, Access access, std::string key, std::vector<std::unique_ptr<MemoryRegion>> parts)
      : MemoryRegion(span, access, std::move(key)), parts_(std::move(parts)) {}
  const MemoryRegion* part(size_t child) const { return parts_[child].get(); }

 private:
  const std::vector<std::unique_ptr<MemoryRegion>> parts_;
};

}  // namespace gradrail::transport::rails
