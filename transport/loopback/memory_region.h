#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "transport/memory_region.h"

namespace gradrail::transport::loopback {

/// The registered regions of one context, by key.
/// Threads  Any: a peer looks regions up when it maps them.
class RegionTable {
 public:
  struct Entry {
    MemorySpan span;
    Access access = Access::local;
  };
  /// Returns the new region's key.
  std::string add(Entry entry);
  void remove(const std::string& key);
  std::optional<Entry> find(const std::string& key) const;

 private:
  mutable std::mutex mutex_;
  std::map<std::string, Entry> entries_;
};

/// Memory of this process, reachable through its table until destruction.
class LoopbackRegion final : public MemoryRegion {
 public:
  /// shared_ptr: peers hold the table as long as their link exists, which may be longer than this context.
  LoopbackRegion(MemorySpan span, Access access, std::shared_ptr<RegionTable> table);
  ~LoopbackRegion() override;

 private:
  std::shared_ptr<RegionTable> table_;
};

/// Whether `key` has the form of a key of this transport; whether it opens anything only the peer can say.
bool is_key(std::string_view key);

}  // namespace gradrail::transport::loopback
