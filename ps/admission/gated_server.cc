#include "ps/admission/gated_server.h"

#include <utility>

#include "base/check.h"
#include "base/status.h"

namespace gradrail::ps {

absl::StatusOr<std::unique_ptr<GatedServer>> GatedServer::start(
    grpc::ServerBuilder& builder, const std::string& address,
    const std::shared_ptr<grpc::ServerCredentials>& credentials, AdmissionGate::Options options) {
  GRADRAIL_ASSIGN_OR_RETURN(std::unique_ptr<AdmissionGate> gate, AdmissionGate::listen(address, std::move(options)));
  using Acceptor = grpc::experimental::ExternalConnectionAcceptor;
  // shared_ptr: std::function copies what it holds.
  const std::shared_ptr<Acceptor> acceptor = builder.experimental().AddExternalConnectionAcceptor(
      grpc::ServerBuilder::experimental_type::ExternalConnectionType::FROM_FD, credentials);
  std::unique_ptr<grpc::Server> server = builder.BuildAndStart();
  if (server == nullptr) return absl::InternalError("gRPC did not start a server");
  GRADRAIL_RETURN_IF_ERROR(gate->start([acceptor](FileDescriptor socket) {
    Acceptor::NewConnectionParameters connection;
    connection.listener_fd = -1;
    connection.fd = socket.release();  // gRPC closes it
    acceptor->HandleNewConnection(&connection);
  }));
  return std::unique_ptr<GatedServer>(new GatedServer(std::move(gate), std::move(server)));
}

void GatedServer::shutdown(Duration grace) {
  gate_.reset();  // a server that is shut down takes no connection
  if (server_ == nullptr) return;
  server_->Shutdown(std::chrono::system_clock::now() + std::chrono::duration_cast<std::chrono::milliseconds>(grace));
  server_.reset();
}

}  // namespace gradrail::ps
