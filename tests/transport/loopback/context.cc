#include "tests/transport/loopback/context.h"

#include <algorithm>
#include <vector>

#include "base/check.h"
#include "base/status.h"
#include "fmt/format.h"
#include "tests/transport/loopback/address_table.h"
#include "tests/transport/loopback/connection.h"
#include "tests/transport/loopback/doorbell.h"
#include "tests/transport/loopback/memory_region.h"
#include "tests/transport/loopback/network.h"
#include "transport/capabilities.h"

namespace gradrail::transport::loopback {
namespace {

class LoopbackContext final : public Context {
 public:
  ~LoopbackContext() override;

  std::string_view name() const override { return "loopback"; }
  Capabilities capabilities() const override {
    // A network is between the tasks: they share no memory.
    return {.direct_map = network_ == nullptr, .max_message_bytes = kMaxMessageBytes};
  }
  absl::StatusOr<std::unique_ptr<MemoryRegion>> register_memory(MemorySpan memory, Access access) override;
  absl::StatusOr<std::string> listen(const std::string& address) override;
  absl::StatusOr<Connection*> connect(const std::string& address, TimePoint deadline) override;
  void close(Connection* connection) override;
  size_t poll(absl::Span<Completion> out) override;
  int wait_fd() const override { return doorbell_->fd(); }
  bool arm() override;

 private:
  LoopbackConnection* add(std::shared_ptr<Link> link, int end);
  void accept(Report& report);
  bool has_waiting_peers() const;

  Network* const network_ = network();
  const uint64_t place_ = network_ == nullptr ? 0 : network_->place();
  // shared_ptr: peers ring it as long as their end of a link exists.
  const std::shared_ptr<Doorbell> doorbell_ = std::make_shared<Doorbell>();
  const std::shared_ptr<SharedRegionTable> regions_ = std::make_shared<SharedRegionTable>();
  std::shared_ptr<Port> port_;  // shared_ptr: a connecting thread may hold it while we leave
  std::vector<std::unique_ptr<LoopbackConnection>> connections_;
  std::vector<std::vector<std::byte>> messages_;  // messages of the last poll
  size_t first_ = 0;                              // round robin: no connection starves another
};

LoopbackContext::~LoopbackContext() {
  // First, so that no further link arrives.
  if (port_ != nullptr) unbind(*port_);
  for (const auto& connection : connections_) connection->leave();
}

absl::StatusOr<std::unique_ptr<MemoryRegion>> LoopbackContext::register_memory(MemorySpan memory, Access access) {
  GRADRAIL_RETURN_IF_ERROR(check_memory("loopback", memory));
  return std::make_unique<LoopbackRegion>(memory, access, regions_);
}

absl::StatusOr<std::string> LoopbackContext::listen(const std::string& address) {
  if (port_ != nullptr) {
    return absl::AlreadyExistsError(fmt::format("loopback: this context already listens on '{}'", port_->owner.name));
  }
  GRADRAIL_ASSIGN_OR_RETURN(port_, bind({address, doorbell_, regions_, place_}));
  return port_->owner.name;
}

absl::StatusOr<Connection*> LoopbackContext::connect(const std::string& address, TimePoint deadline) {
  const std::string own_name = port_ != nullptr ? port_->owner.name : "(client)";
  GRADRAIL_ASSIGN_OR_RETURN(auto link, dial({own_name, doorbell_, regions_, place_}, address, deadline));
  return add(std::move(link), 0);
}

LoopbackConnection* LoopbackContext::add(std::shared_ptr<Link> link, int end) {
  connections_.push_back(std::make_unique<LoopbackConnection>(std::move(link), end));
  return connections_.back().get();
}

void LoopbackContext::close(Connection* connection) {
  const auto found = std::find_if(connections_.begin(), connections_.end(),
                                  [&](const auto& candidate) { return candidate.get() == connection; });
  GRADRAIL_CHECK(found != connections_.end());
  (*found)->leave();
  connections_.erase(found);
}

size_t LoopbackContext::poll(absl::Span<Completion> out) {
  // The spans of the last poll end here (Completion::message).
  messages_.clear();
  Report report(out, messages_);
  accept(report);
  if (connections_.empty()) return report.count();
  first_ = (first_ + 1) % connections_.size();
  for (size_t i = 0; i < connections_.size() && !report.full(); ++i) {
    connections_[(first_ + i) % connections_.size()]->progress(report);
  }
  return report.count();
}

void LoopbackContext::accept(Report& report) {
  if (port_ == nullptr) return;
  const MutexLock lock(port_->mutex);
  while (!port_->waiting.empty() && !report.full()) {
    report.add({.kind = Completion::Kind::connected, .connection = add(std::move(port_->waiting.front()), 1)});
    port_->waiting.pop_front();
  }
}

bool LoopbackContext::has_waiting_peers() const {
  if (port_ == nullptr) return false;
  const MutexLock lock(port_->mutex);
  return !port_->waiting.empty();
}

bool LoopbackContext::arm() {
  // The call precedes the look into the queues: work that arrives later rings.
  doorbell_->arm();
  return !has_waiting_peers() && std::none_of(connections_.begin(), connections_.end(),
                                              [](const auto& connection) { return connection->has_work(); });
}

}  // namespace

absl::StatusOr<std::unique_ptr<Context>> open(const OpenOptions&) { return std::make_unique<LoopbackContext>(); }

void add_to_transports() {
  if (find_transport("loopback").ok()) return;
  add_transport({.name = "loopback",
                 .purpose = "tests and simulation, inside one process",
                 .open = &open,
                 .same_host_only = true,
                 .by_name_only = true});
}

}  // namespace gradrail::transport::loopback
