#pragma once

#include <ucp/api/ucp.h>

#include <string>

#include "absl/status/status.h"
#include "base/check.h"
#include "transport/ucx/device/lanes.h"

namespace gradrail::transport::ucx {

/// The endpoint of UCX to one peer. UCX may use it beyond close(), until released().
class Endpoint {
 public:
  /// `failed` is called with `user` after a loss of the path.
  absl::Status open(ucp_worker_h worker, std::string worker_address, ucp_err_handler_cb_t failed, void* user);
  /// Begins to close it without waiting for operations.
  void close();
  bool released() const;
  /// Frees the rest after close().
  void reap();

  /// Null before open() and after close().
  ucp_ep_h get() const { return endpoint_; }
  const Lanes& lanes() const { return lanes_; }
  void read_lanes() {
    GRADRAIL_CHECK(endpoint_ != nullptr);
    lanes_ = lanes_of(endpoint_);
  }

 private:
  ucp_ep_h endpoint_ = nullptr;
  void* close_request_ = nullptr;
  Lanes lanes_{.text = "(not connected yet)", .rdma = false};  ///< chosen lanes, and again the lanes after the wire-up
};

}  // namespace gradrail::transport::ucx
