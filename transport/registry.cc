#include "transport/registry.h"

#include <sys/stat.h>
#include <unistd.h>

#include <fstream>

#include "fmt/format.h"
#include "fmt/ranges.h"
#include "transport/loopback/context.h"
#include "transport/shm/context.h"
#include "transport/tcp/context.h"

namespace gradrail::transport {

const std::vector<Transport>& transports() {
  static const std::vector<Transport> list = {
      {"shm", "tasks on one host: peers map each other's memory", &shm::open, true, false},
      {"tcp", "everywhere", &tcp::open, false, false},
      {"loopback", "tests and simulation, inside one process", &loopback::open, true, true},
  };
  return list;
}

absl::StatusOr<const Transport*> find_transport(std::string_view name) {
  std::vector<std::string_view> names;
  for (const Transport& transport : transports()) {
    if (transport.name == name) return &transport;
    names.push_back(transport.name);
  }
  return absl::NotFoundError(
      fmt::format("no transport '{}' in this build (there is: {})", name, fmt::join(names, ", ")));
}

std::string host_id() {
  std::string boot_id = "unknown-boot";
  std::ifstream("/proc/sys/kernel/random/boot_id") >> boot_id;
  struct stat network {};
  stat("/proc/self/ns/net", &network);  // abstract socket names live in the network namespace
  return fmt::format("{}/{}/{}", boot_id, network.st_ino, getuid());
}

}  // namespace gradrail::transport
