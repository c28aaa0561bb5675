#pragma once

#include <string>

namespace gradrail::transport {

/// What the kernel says of this host's RDMA devices, for whoever found none that can be used: "rxe0 port 1 is down".
/// `root` is where sysfs is mounted.
std::string describe_rdma_devices(const std::string& root = "/sys");

}  // namespace gradrail::transport
