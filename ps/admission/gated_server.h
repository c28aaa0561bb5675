#pragma once

#include <grpcpp/grpcpp.h>

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "ps/admission/gate.h"

namespace gradrail::ps {

/// A gRPC server behind a gate. Its clients open channels with open_channel().
class GatedServer {
 public:
  /// `builder` has the services and no port.
  /// Errors  Those of AdmissionGate::listen.
  static absl::StatusOr<std::unique_ptr<GatedServer>> start(grpc::ServerBuilder& builder, const std::string& address,
                                                            const std::shared_ptr<grpc::ServerCredentials>& credentials,
                                                            AdmissionGate::Options options);
  /// Cancels the calls that have not ended after `grace`.
  ~GatedServer() { shutdown(Duration::zero()); }
  void shutdown(Duration grace);

  uint16_t port() const { return gate_->port(); }

 private:
  GatedServer(std::unique_ptr<AdmissionGate> gate, std::unique_ptr<grpc::Server> server)
      : gate_(std::move(gate)), server_(std::move(server)) {}

  std::unique_ptr<AdmissionGate> gate_;
  std::unique_ptr<grpc::Server> server_;
};

}  // namespace gradrail::ps
