#pragma once

#include <string>

namespace gradrail::transport {

/// The kernel's state of this host's RDMA devices, for messages about missing devices: "rxe0 port 1 is down". `root` is
/// the mount point of sysfs.
std::string describe_rdma_devices(const std::string& root = "/sys");

}  // namespace gradrail::transport
