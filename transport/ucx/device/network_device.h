#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace gradrail::transport::ucx {

/// An RDMA device's port as the kernel lists it.
struct RdmaPort {
  std::string name;       ///< name in UCX: "rxe0:1"
  std::string interface;  ///< interface of the network beside it, as of its GIDs; "" on InfiniBand without IPoIB
  bool soft_roce = false;
};

/// Root is "/sys" outside of tests.
std::vector<RdmaPort> rdma_ports(const std::string& root = "/sys");

/// The network interface with this address (IPv4 or IPv6 in numbers); "" when none has it or it is a loopback address.
std::string interface_of(const std::string& host);

}  // namespace gradrail::transport::ucx
