#pragma once

#include <functional>

#include "absl/status/status.h"
#include "ps/control/control_context.h"

namespace gradrail::ps {

class Replication;
namespace proto {
class BarrierReply;
class BarrierRequest;
}  // namespace proto

/// Lets workers wait for each other.
/// Threads  Any thread; one call may wait in each thread of the server.
class BarrierHandler {
 public:
  BarrierHandler(ControlContext& context, const Replication& replication)
      : context_(context), replication_(replication) {}

  /// Enters the barrier and waits until it is complete, or for the timeout of the request; the worker then calls
  /// again. `is_cancelled` ends the wait of a caller that has disconnected.
  /// Errors  ABORTED: the run is over. UNAVAILABLE: the backup serves instead. As Membership::heard().
  absl::Status enter(const proto::BarrierRequest& request, const std::function<bool()>& is_cancelled,
                     proto::BarrierReply& reply);

 private:
  ControlContext& context_;
  const Replication& replication_;
};

}  // namespace gradrail::ps
