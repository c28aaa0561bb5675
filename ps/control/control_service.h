#pragma once

#include <memory>

namespace grpc {
class Service;
}

namespace gradrail::ps {

struct ControlPlane;

/// The gRPC service in front of a control plane. Its callers have passed the gate (ps/admission/gate.h).
/// Threads  Any thread; the service must end before `plane`.
std::unique_ptr<grpc::Service> make_control_service(ControlPlane& plane);

}  // namespace gradrail::ps
