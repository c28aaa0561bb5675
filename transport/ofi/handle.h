#pragma once

#include <rdma/fabric.h>

#include <memory>

namespace gradrail::transport::ofi {

template <typename Fid>
struct CloseFid {
  void operator()(Fid* fid) const { fi_close(&fid->fid); }
};

/// A libfabric object. Close all objects that were opened from it first: fi_close of a busy object fails, and the
/// object stays.
template <typename Fid>
using Handle = std::unique_ptr<Fid, CloseFid<Fid>>;

struct FreeInfo {
  void operator()(fi_info* info) const { fi_freeinfo(info); }
};
using Info = std::unique_ptr<fi_info, FreeInfo>;

}  // namespace gradrail::transport::ofi
