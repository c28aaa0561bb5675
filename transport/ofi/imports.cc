#include "transport/ofi/imports.h"

#include "base/status.h"
#include "transport/common/slice.h"

namespace gradrail::transport::ofi {
namespace {

/// Maximum number of imports. A peer that requests more is broken: a task opens a handful of regions.
constexpr size_t kMaxImports = 65536;

}  // namespace

absl::StatusOr<Request> Imports::request(const RegionKey& key) const {
  if (regions_.size() >= kMaxImports) return absl::ResourceExhaustedError("ofi: too many imported regions");
  // ImportedRegions numbers from 1: this is the RemoteRegion that add() will return.
  return Request{static_cast<uint32_t>(regions_.size() + 1), key};
}

absl::Status Imports::grant(const Grant& grant) {
  Import* const import = regions_.find(static_cast<RemoteRegion>(grant.number));
  if (import == nullptr || import->granted) {
    return absl::DataLossError("ofi: answer without a request");
  }
  import->granted = true;
  import->device_key = grant.key;
  import->base = grant.base;
  return absl::OkStatus();
}

absl::StatusOr<const Import*> Imports::find(const RemoteSlice& slice, uint64_t bytes, Access wanted) const {
  if (slice.region == RemoteRegion{} && bytes == 0 && slice.offset == 0 && wanted == Access::remote_write) {
    return nullptr;
  }
  const Import* const import = regions_.find(slice.region);
  if (import == nullptr) return absl::InvalidArgumentError("ofi: not an imported region");
  if (!allows(import->key.access, wanted)) {
    return absl::InvalidArgumentError(wanted == Access::remote_write ? "ofi: put to a region not remotely writable"
                                                                     : "ofi: get from a region not remotely readable");
  }
  GRADRAIL_RETURN_IF_ERROR(common::check_remote("ofi", slice, bytes, import->key.bytes));
  if (!import->granted) return absl::ResourceExhaustedError("ofi: the peer has not opened its region yet, poll first");
  return import;
}

}  // namespace gradrail::transport::ofi
