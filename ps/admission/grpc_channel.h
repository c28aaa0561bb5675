#pragma once

#include <grpcpp/grpcpp.h>

#include <memory>
#include <string>

#include "ps/protocol/control_channel.h"

namespace gradrail::ps {

/// Opens gRPC channels through the gate of a ps task, as open_channel() does.
std::shared_ptr<ControlDialer> grpc_dialer(std::shared_ptr<grpc::ChannelCredentials> credentials, std::string secret,
                                           grpc::ChannelArguments arguments);

}  // namespace gradrail::ps
