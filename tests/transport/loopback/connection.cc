#include "tests/transport/loopback/connection.h"

#include "base/check.h"
#include "fmt/format.h"

namespace gradrail::transport::loopback {

void Report::add_message(Connection* connection, std::vector<std::byte> message) {
  // Moving the outer vector's elements leaves their storage where it is: earlier spans stay valid.
  messages_->push_back(std::move(message));
  add({.kind = Completion::Kind::message, .connection = connection, .message = messages_->back()});
}

LoopbackConnection::LoopbackConnection(std::shared_ptr<Link> link, int end) : link_(std::move(link)), end_(end) {
  GRADRAIL_CHECK(link_ != nullptr && (end_ == 0 || end_ == 1));
}

absl::StatusOr<RemoteRegion> LoopbackConnection::import(std::string_view key) {
  if (!is_key(key)) return absl::InvalidArgumentError(fmt::format("{}: not a key of loopback", describe()));
  return imported_.add(std::string(key));
}

absl::StatusOr<std::byte*> LoopbackConnection::map(RemoteRegion region) {
  const std::string* const key = imported_.find(region);
  if (key == nullptr) return absl::InvalidArgumentError(fmt::format("{}: map: unknown region", describe()));
  {
    const MutexLock lock(link_->mutex);
    if (!link_->lost.ok()) return absl::UnavailableError(link_->lost.message());
  }
  absl::StatusOr<std::byte*> mapped = peer().regions->find("map", *key);
  return mapped.ok() ? mapped : refused(mapped.status());
}

std::string LoopbackConnection::describe() const { return fmt::format("loopback {} > {}", us().name, peer().name); }

/// Whether something that the network has delayed can be taken at this end now.
bool LoopbackConnection::is_here(TimePoint arrives) const {
  Network* const network = link_->network;
  if (network == nullptr || arrives == TimePoint()) return true;
  return Clock::now() >= arrives && network->passes(peer(), us());
}

bool LoopbackConnection::sees_loss() const {
  return !link_->lost.ok() && (left_ || loss_reported_ || is_here(link_->loss_arrives));
}

void LoopbackConnection::leave() {
  left_ = true;
  {
    const MutexLock lock(link_->mutex);
    if (link_->network != nullptr && link_->lost.ok()) link_->loss_arrives = link_->network->arrival(us(), peer());
    // The peer touches our memory only under this mutex and before the loss, so it does not touch it afterwards (Link,
    // invariant 3).
    if (link_->lost.ok()) link_->lost = absl::UnavailableError(fmt::format("{}: peer closed", describe()));
  }
  peer().doorbell->ring();
}

bool LoopbackConnection::has_work() const {
  const MutexLock lock(link_->mutex);
  // Operations that ended before the loss are still reported.
  if (!ours().done.empty()) return true;
  // No lane is used after a loss (Link, invariant 2).
  if (!link_->lost.ok()) return !loss_reported_ && sees_loss();
  for (const auto& lane : theirs().lanes) {
    if (!lane.empty() && is_here(lane.front().arrives)) return true;
  }
  return false;
}

}  // namespace gradrail::transport::loopback
