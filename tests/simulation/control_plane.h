#pragma once

#include <memory>
#include <string>

#include "ps/protocol/control_channel.h"
#include "ps/server_options.h"
#include "tests/simulation/network.h"

namespace gradrail::simulation {

/// "127.0.0.1:PORT" of a task's control plane.
std::string control_address(uint32_t task);

/// The control planes of the simulated servers, without gRPC: a call is a message over Net. The shipped handler runs in
/// a thread of the server's process.
class ControlPlanes {
 public:
  explicit ControlPlanes(Net& net);
  ~ControlPlanes();

  std::shared_ptr<ps::ControlDialer> dialer();
  absl::StatusOr<std::unique_ptr<ps::ControlListener>> listen(ps::ControlPlane& plane, uint32_t task);
  /// The process has ended without shutdown().
  void on_kill(ProcessId process);
  /// Null: the task does not listen.
  ps::ControlPlane* plane_of(uint32_t task) const;

  struct State;

 private:
  std::shared_ptr<State> state_;
};

}  // namespace gradrail::simulation
