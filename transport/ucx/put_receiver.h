#pragma once

#include <ucp/api/ucp.h>

#include <cstddef>
#include <cstdint>

#include "transport/ucx/arrivals.h"
#include "transport/ucx/memory_region.h"
#include "transport/ucx/wire.h"

namespace gradrail::transport::ucx {

class UcxConnection;
class UcxContext;

/// The receiving side of the puts of one connection. It places their bytes and announces them in the order of posting.
/// Threads  Callbacks of UCX within the worker's progress, and the owner thread.
class PutReceiver {
 public:
  PutReceiver(UcxContext& context, UcxConnection& connection) : context_(context), connection_(connection) {}

  ucs_status_t arrived(const Header& header, void* data, size_t bytes, const ucp_am_recv_param_t& param);
  /// Announces the puts that wait for it: the sender was connected after the last bytes arrived.
  void confirm();
  /// Releases the data of puts that wait for older ones. None of them starts any more.
  void drop_held();
  /// No receive of UCX is under way.
  bool idle() const { return receiving_ == 0; }
  bool writes_to(const Region& region);

 private:
  ucs_status_t hold(Arrival& arrival, void* data, const ucp_am_recv_param_t& param);
  void start(Arrival& arrival, void* data);
  void moved(Arrival& arrival);
  void announce(uint64_t immediate);
  void announce_done();
  void start_waiting();
  static void on_moved(void* request, ucs_status_t status, size_t bytes, void* arrival);

  UcxContext& context_;
  UcxConnection& connection_;
  uint32_t next_ = 0;
  size_t receiving_ = 0;  ///< receives that UCX has not finished
  Arrivals arrivals_;
};

}  // namespace gradrail::transport::ucx
