#include "transport/registry.h"

#include <sys/stat.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>

#include "base/status.h"
#include "fmt/format.h"
#include "fmt/ranges.h"
#include "transport/plugin_loader.h"
#include "transport/shm/context.h"
#include "transport/tcp/context.h"

namespace gradrail::transport {

namespace {

/// The kernel's list of RDMA devices. Looked at before a plug-in is loaded, so that the many hosts without one do not
/// pay for libraries they cannot use.
bool has_rdma_device() {
  std::error_code error;
  return std::filesystem::directory_iterator("/sys/class/infiniband", error) != std::filesystem::directory_iterator() ||
         std::filesystem::directory_iterator("/sys/class/cxi", error) != std::filesystem::directory_iterator();
}

Transport plugin(const std::string& name, const std::string& purpose, bool is_ours) {
  const auto open = [name, is_ours](const OpenOptions& options) -> absl::StatusOr<std::unique_ptr<Context>> {
    if (options.encryption.has_value())
      return absl::FailedPreconditionError(fmt::format("--encrypt-data: {} carries data unencrypted", name));
    if (is_ours && options.rdma_only && !has_rdma_device()) {
      return absl::FailedPreconditionError("no RDMA device on this host (nothing in /sys/class/infiniband)");
    }
    GRADRAIL_ASSIGN_OR_RETURN(const Plugin* const loaded, load_plugin(name));
    return loaded->open(options);
  };
  return {.name = name, .purpose = purpose, .open = open, .plugin = true, .by_name_only = !is_ours};
}

std::deque<Transport> make_list() {
  std::deque<Transport> list = {
      {"shm", "tasks on one host: peers map each other's memory", &shm::open, true},
      plugin("ucx", "InfiniBand, RoCE through UCX", true),
      plugin("ofi", "InfiniBand, RoCE, EFA through libfabric", true),
  };
  for (const std::string& name : plugin_names()) {
    const auto same = [&](const Transport& transport) { return transport.name == name; };
    // A file in a plug-in folder must not replace a transport of this program.
    const bool built_in = name == "tcp" || std::any_of(list.begin(), list.end(), same);
    if (!built_in) list.push_back(plugin(name, "a plug-in", false));
  }
  list.push_back({.name = "tcp", .purpose = "everywhere", .open = &tcp::open, .has_lanes = true});
  return list;
}

/// Made at the first use: a later set_plugin_dir() adds no names.
std::deque<Transport>& list() {
  static std::deque<Transport> made = make_list();
  return made;
}

}  // namespace

const std::deque<Transport>& transports() { return list(); }

void add_transport(Transport transport) { list().push_back(std::move(transport)); }

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
  std::string boot_id;
  if (!(std::ifstream("/proc/sys/kernel/random/boot_id") >> boot_id)) {  // /proc is not mounted
    utsname names{};
    uname(&names);
    boot_id = fmt::format("unknown boot of {}", names.nodename);
  }
  struct stat network {};
  stat("/proc/self/ns/net", &network);  // abstract socket names belong to the network namespace
  // shm admits only processes of the same user (shm/unix_socket.h).
  return fmt::format("{}/{}/{}", boot_id, network.st_ino, getuid());
}

}  // namespace gradrail::transport
