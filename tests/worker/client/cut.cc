#include "tests/worker/client/cut.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include "fmt/format.h"
#include "tests/worker/client/cluster.h"

namespace gradrail::worker {

size_t cut_data_connections(const std::string& transport, const ClusterSpec& cluster) {
  const auto port_of = [](const sockaddr_storage& address) {
    return ntohs(reinterpret_cast<const sockaddr_in&>(address).sin_port);
  };
  const auto is_control = [&](uint16_t port) {
    for (const std::string& ps : cluster.ps) {
      if (ps.ends_with(fmt::format(":{}", port))) return true;
    }
    return false;
  };
  size_t cut = 0;
  for (int fd = 3; fd < 1024; ++fd) {
    sockaddr_storage here{};
    sockaddr_storage there{};
    socklen_t here_bytes = sizeof(here);
    socklen_t there_bytes = sizeof(there);
    if (getsockname(fd, reinterpret_cast<sockaddr*>(&here), &here_bytes) != 0) continue;
    if (getpeername(fd, reinterpret_cast<sockaddr*>(&there), &there_bytes) != 0) continue;
    const bool is_unix = here.ss_family == AF_UNIX;
    if (is_unix != (transport == "shm")) continue;
    if (!is_unix && ntohl(reinterpret_cast<sockaddr_in&>(here).sin_addr.s_addr) != INADDR_LOOPBACK) continue;
    if (!is_unix && (is_control(port_of(here)) || is_control(port_of(there)))) continue;
    shutdown(fd, SHUT_RDWR);
    ++cut;
  }
  return cut;
}

void cut_one(const std::string& transport, const ClusterSpec& cluster) {
  EXPECT_TRUE(eventually([&] { return cut_data_connections(transport, cluster) > 0; })) << "nothing was cut";
}

}  // namespace gradrail::worker
