#include "transport/ucx/device/network_device.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>

#include <filesystem>

#include "base/read_file.h"

namespace gradrail::transport::ucx {
namespace {

namespace fs = std::filesystem;

std::string interface_of_port(const fs::path& port) {
  // Entries of unused GIDs cannot be read; the first that can names the interface.
  const fs::path folder = port / "gid_attrs" / "ndevs";
  for (const std::string& entry : names_in(folder)) {
    if (std::string name = first_line(folder / entry); !name.empty()) return name;
  }
  return "";
}

std::string numeric(const sockaddr* address) {
  const socklen_t bytes = address->sa_family == AF_INET ? sizeof(sockaddr_in) : sizeof(sockaddr_in6);
  char text[NI_MAXHOST];
  return getnameinfo(address, bytes, text, sizeof(text), nullptr, 0, NI_NUMERICHOST) == 0 ? text : "";
}

}  // namespace

std::vector<RdmaPort> rdma_ports(const std::string& root) {
  std::vector<RdmaPort> ports;
  const fs::path devices = fs::path(root) / "class" / "infiniband";
  for (const std::string& device : names_in(devices)) {
    // rxe is not a device on a bus. It is the only kind with this description.
    const bool soft_roce = first_line(devices / device / "node_desc").substr(0, 3) == "rxe";
    const fs::path folder = devices / device / "ports";
    for (const std::string& port : names_in(folder)) {
      ports.push_back({device + ":" + port, interface_of_port(folder / port), soft_roce});
    }
  }
  return ports;
}

std::string interface_of(const std::string& host) {
  ifaddrs* all = nullptr;
  if (getifaddrs(&all) != 0) return "";
  std::string found;
  for (const ifaddrs* each = all; each != nullptr && found.empty(); each = each->ifa_next) {
    if (each->ifa_addr == nullptr || (each->ifa_flags & IFF_LOOPBACK) != 0) continue;
    const int family = each->ifa_addr->sa_family;
    if ((family == AF_INET || family == AF_INET6) && numeric(each->ifa_addr) == host) found = each->ifa_name;
  }
  freeifaddrs(all);
  return found;
}

}  // namespace gradrail::transport::ucx
