#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "ps/protocol/control_channel.h"
#include "ps/protocol/security.h"

namespace gradrail::ps {

/// Settings of gRPC for one connection; 0: its default.
struct GrpcTimes {
  int ping_ms = 0;    ///< a ping leaves after so much silence
  int answer_ms = 0;  ///< limit for its answer, and for TCP to have any sent byte acknowledged
  int connect_ms = 0;
};

/// Opens gRPC channels through the gate of a ps task, as open_channel() does.
/// Errors  Those of channel_credentials().
absl::StatusOr<std::shared_ptr<ControlDialer>> grpc_dialer(const Security& security, GrpcTimes times);

}  // namespace gradrail::ps
