#pragma once

#include <memory>
#include <string>

namespace grpc {
class Service;
}

namespace gradrail::ps {

struct ControlPlane;

/// The gRPC service in front of a control plane. It passes on a call if the caller proves that it has the job's
/// secret, and reads no request of any other caller. It is the only part of the control plane that uses gRPC.
/// Threads  Any thread; the service must end before `plane`.
std::unique_ptr<grpc::Service> make_control_guard(ControlPlane& plane, std::string secret);

}  // namespace gradrail::ps
