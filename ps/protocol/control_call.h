#pragma once

#include <grpcpp/grpcpp.h>

#include <chrono>
#include <cstddef>

#include "gradrail/clock.h"
#include "ps/protocol/control.grpc.pb.h"

namespace gradrail::ps {

/// Largest message of the control plane: enough for a schema of a million tensors.
inline constexpr size_t kMaxMessageBytes = 64 << 20;

/// Both ends set the window of gRPC to this and turn off its estimate of the bandwidth. The estimate sends a ping and
/// sets a timer with each message, which takes a third of the time of a heartbeat.
inline constexpr int kWindowBytes = 1 << 20;

/// Header of a heartbeat: a Member, serialized. It names the worker of a stream that ends without a ping.
inline constexpr char kMemberHeader[] = "gradrail-member-bin";

/// A unary call of the control plane.
template <typename Request, typename Reply>
using Method = grpc::Status (proto::Control::Stub::*)(grpc::ClientContext*, const Request&, Reply*);

inline void set_deadline(grpc::ClientContext& context, Duration timeout) {
  // gRPC takes deadlines of the system clock.
  context.set_deadline(std::chrono::system_clock::now() +
                       std::chrono::duration_cast<std::chrono::milliseconds>(timeout));
}

template <typename Request, typename Reply>
grpc::Status call(proto::Control::Stub& stub, Method<Request, Reply> method, Duration timeout, const Request& request,
                  Reply& reply) {
  grpc::ClientContext context;
  set_deadline(context, timeout);
  return (stub.*method)(&context, request, &reply);
}

}  // namespace gradrail::ps
