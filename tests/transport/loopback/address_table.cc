#include "tests/transport/loopback/address_table.h"

#include <atomic>
#include <map>

#include "base/check.h"
#include "fmt/format.h"
#include "tests/transport/loopback/network.h"

namespace gradrail::transport::loopback {
namespace {

struct Table {
  Mutex mutex;
  std::map<std::string, std::shared_ptr<Port>> ports ABSL_GUARDED_BY(mutex);
  uint64_t generated ABSL_GUARDED_BY(mutex) = 0;
};

Table& table() {
  static Table instance;
  return instance;
}

std::atomic<Network*> used_network = nullptr;

std::string unused_name(Table& names) ABSL_EXCLUSIVE_LOCKS_REQUIRED(names.mutex) {
  while (true) {
    std::string name = fmt::format("loopback-{}", ++names.generated);
    if (!names.ports.contains(name)) return name;
  }
}

}  // namespace

void use_network(Network* network) { used_network = network; }
Network* network() { return used_network; }

absl::StatusOr<std::shared_ptr<Port>> bind(End owner) {
  Table& names = table();
  const MutexLock lock(names.mutex);
  if (owner.name.empty()) owner.name = unused_name(names);
  if (names.ports.contains(owner.name)) {
    return absl::AlreadyExistsError(fmt::format("loopback: '{}' is already listened on", owner.name));
  }
  auto port = std::make_shared<Port>(std::move(owner));
  names.ports.emplace(port->owner.name, port);
  return port;
}

void unbind(Port& port) {
  {
    Table& names = table();
    const MutexLock lock(names.mutex);
    const size_t erased = names.ports.erase(port.owner.name);
    GRADRAIL_CHECK(erased == 1);  // bind() has added it
  }
  const MutexLock lock(port.mutex);
  // A dial() that found the port before it left the table is refused by this flag.
  port.closed = true;
  for (const std::shared_ptr<Link>& link : port.waiting) {
    const MutexLock link_lock(link->mutex);
    link->lost = absl::UnavailableError(fmt::format("loopback: '{}' stopped listening", port.owner.name));
    link->ends[0].doorbell->ring();
  }
  port.waiting.clear();
}

absl::StatusOr<std::shared_ptr<Link>> dial(End from, const std::string& name, TimePoint deadline) {
  const absl::Status refused = absl::UnavailableError(fmt::format("loopback: no context listens on '{}'", name));
  std::shared_ptr<Port> port;
  {
    Table& names = table();
    const MutexLock lock(names.mutex);
    const auto found = names.ports.find(name);
    if (found == names.ports.end()) return refused;
    port = found->second;
  }
  auto link = std::make_shared<Link>(std::move(from), port->owner);
  if (Network* const network = link->network; network != nullptr) {
    if (const absl::Status reached = network->connect(link, deadline); !reached.ok()) return reached;
  }
  {
    const MutexLock lock(port->mutex);
    // unbind() may have run between the two locks: no context would ever accept a link that is queued now.
    if (port->closed) return refused;
    port->waiting.push_back(link);
  }
  port->owner.doorbell->ring();
  return link;
}

}  // namespace gradrail::transport::loopback
