#pragma once

#include <cstddef>
#include <string>

#include "base/check.h"
#include "transport/c_plugin/table.h"
#include "transport/memory_region.h"

namespace gradrail::transport::c_plugin {

/// A registration of the plug-in. It counts itself in its context, which must not end before it.
class PluginRegion final : public MemoryRegion {
 public:
  PluginRegion(const Table& table, gradrail_transport_context* context, gradrail_transport_region* handle,
               MemorySpan memory, Access access, std::string key, size_t& region_count)
      : MemoryRegion(memory, access, std::move(key)),
        table_(table),
        context_(context),
        handle_(handle),
        region_count_(region_count) {
    ++region_count_;
  }
  ~PluginRegion() override {
    GRADRAIL_CHECK(region_count_ > 0);  // the context checks the count at its end
    table_->deregister_memory(context_, handle_);
    --region_count_;
  }
  gradrail_transport_region* handle() const { return handle_; }

 private:
  const Table& table_;
  gradrail_transport_context* const context_;
  gradrail_transport_region* const handle_;
  size_t& region_count_;
};

}  // namespace gradrail::transport::c_plugin
