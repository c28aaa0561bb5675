#include "ps/shard/peer_table.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "base/log.h"
#include "base/status.h"
#include "fmt/format.h"
#include "ps/protocol/control.pb.h"
#include "ps/protocol/data_message.h"

namespace gradrail::ps {
namespace {

/// Together with the transport's own limit before it (hello_timeout of tcp), an unauthenticated connection lasts 5 s at
/// most.
constexpr auto kHandshakeDeadline = std::chrono::seconds(3);
/// Time limit of a return, longer than a worker's attempts to return over another path (20 s). The control plane
/// detects a lost process earlier.
constexpr auto kReturnDeadline = std::chrono::seconds(30);
/// Time for the peer to read a refusal before the connection closes.
constexpr auto kGracePeriod = std::chrono::seconds(1);

}  // namespace

PeerTable::PeerTable(ShardEnvironment& environment, Events events)
    : environment_(environment), events_(std::move(events)) {}

PeerTable::~PeerTable() {
  for (auto& [connection, peer] : peers_) {
    peer->pinned.clear();  // the order of close()
    peer->device = {};
    environment_.contexts[peer->context_index]->close(peer->connection);
  }
}

void PeerTable::admit(WorkerIndex worker, uint64_t incarnation, const std::string& key) {
  admitted_[worker] = {.incarnation = incarnation, .key = key};
}

const PeerTable::Admission* PeerTable::admission(WorkerIndex worker) const {
  const auto found = admitted_.find(worker);
  return found == admitted_.end() ? nullptr : &found->second;
}

void PeerTable::remove_member(WorkerIndex worker, uint64_t incarnation) {
  if (const Admission* admitted = admission(worker); admitted != nullptr && admitted->incarnation == incarnation) {
    admitted_.erase(worker);
  }
  // Collected first: close() erases from peers_.
  std::vector<ShardPeer*> theirs;
  for (const auto& [connection, peer] : peers_) {
    // A peer without a worker has no incarnation.
    if (peer->worker == worker && peer->incarnation == incarnation) theirs.push_back(peer.get());
  }
  for (ShardPeer* peer : theirs) close(*peer);
  std::erase_if(absent_,
                [&](const Absent& absent) { return absent.worker == worker && absent.incarnation == incarnation; });
  tell_lowest(worker);
}

/// Notifies the lowest worker, which is the chief. Without this message it is informed by its next heartbeat, which may
/// follow its last step.
void PeerTable::tell_lowest(WorkerIndex removed) {
  const auto lowest = std::find_if(active_.begin(), active_.end(), [](const ShardPeer* p) { return p != nullptr; });
  if (lowest == active_.end() || (*lowest)->worker < removed) return;
  proto::ToWorker message;
  message.set_lower_left(true);
  send_message(*(*lowest)->connection, message).IgnoreError();  // the heartbeat has the information if there is no room
}

ShardPeer& PeerTable::accept(transport::Connection& connection, size_t context_index) {
  GRADRAIL_CHECK(context_index < environment_.contexts.size());
  auto peer = std::make_unique<ShardPeer>();
  peer->connection = &connection;
  peer->context_index = context_index;
  peer->phase_deadline =
      Clock::now() + transport::scaled_limit(kHandshakeDeadline, environment_.options.open.path_timeout);
  connection.set_user_data(reinterpret_cast<uint64_t>(peer.get()));
  ShardPeer& accepted = *(peers_[&connection] = std::move(peer));
  update_unsettled(accepted);
  return accepted;
}

ShardPeer& PeerTable::peer_of(const transport::Connection& connection) {
  auto* const peer = reinterpret_cast<ShardPeer*>(connection.user_data());
  GRADRAIL_CHECK(peer != nullptr && peer->connection == &connection);
  return *peer;
}

ShardPeer* PeerTable::primary() const {
  for (const auto& [connection, peer] : peers_) {
    if (peer->phase == ShardPeer::Phase::primary) return peer.get();
  }
  return nullptr;
}

void PeerTable::activate(ShardPeer& peer) {
  GRADRAIL_CHECK(peer.phase == ShardPeer::Phase::validated);
  // The former connection serves until this moment: a worker that verifies a better path still pushes over it.
  if (ShardPeer* former = active(peer.worker); former != nullptr) start_closing(*former, Clock::now());
  // expire() would otherwise report the worker as lost although it has returned.
  std::erase_if(absent_, [&](const Absent& absent) { return absent.worker == peer.worker; });
  if (active_.size() <= peer.worker) active_.resize(peer.worker + 1, nullptr);
  active_[peer.worker] = &peer;
  peer.phase = ShardPeer::Phase::active;
  events_.on_active(peer);
  update_unsettled(peer);
}

/// The slots of the connection end with it, and the gradients in them. The worker repeats them when it returns.
void PeerTable::deactivate(ShardPeer& peer) {
  GRADRAIL_CHECK(active_[peer.worker] == &peer);  // invariant 1
  active_[peer.worker] = nullptr;
  events_.on_inactive(peer);
}

void PeerTable::start_closing(ShardPeer& peer, TimePoint deadline) {
  if (is_active(peer)) deactivate(peer);
  peer.backlog.clear();
  peer.phase = ShardPeer::Phase::closing;
  peer.phase_deadline = deadline;
  update_unsettled(peer);
}

void PeerTable::refuse(ShardPeer& peer, const std::string& why) {
  rate_limited_log_.write(
      fmt::format("{}: refused {}: {}", environment_.options.name, peer.connection->describe(), why),
      is_ending_ ? LogLevel::info : LogLevel::warn);
  const bool was_active = peer.phase == ShardPeer::Phase::active;
  start_closing(peer, Clock::now() + kGracePeriod);
  // The heartbeat of the worker may continue. Without a report, sync would wait for its gradients forever.
  if (was_active && environment_.options.on_lost) {
    environment_.options.on_lost(peer.worker, peer.incarnation, fmt::format("it was refused: {}", why));
  }
  proto::ToWorker message;
  message.set_refused(why);
  send_message(*peer.connection, message).IgnoreError();  // best effort: the connection is going to be closed
}

void PeerTable::on_lost(ShardPeer& peer, const std::string& cause) {
  if (peer.phase == ShardPeer::Phase::active) {
    losses_.write(fmt::format("{}: lost {} to worker {}: {}; the worker may return over another path",
                              environment_.options.name, peer.connection->describe(), peer.worker, cause));
    absent_.push_back({peer.worker, peer.incarnation, Clock::now() + kReturnDeadline, cause});
  }
  if (peer.phase == ShardPeer::Phase::primary) {
    log_warning("{}: lost {} to the primary of this shard: {}", environment_.options.name, peer.connection->describe(),
                cause);
  }
  close(peer);
}

void PeerTable::close(ShardPeer& peer) {
  add_traffic(peer, past_traffic_);
  GRADRAIL_CHECK(!peer.is_counted_unsettled || unsettled_ > 0);  // invariant 2
  if (peer.is_counted_unsettled) --unsettled_;
  if (is_active(peer)) deactivate(peer);
  transport::Connection* const connection = peer.connection;
  transport::Context& context = *environment_.contexts[peer.context_index];
  // The order matters: pins end before the memory that they pin is unmapped, the connection before its regions.
  peer.pinned.clear();
  peer.device = {};
  context.close(connection);
  const size_t erased = peers_.erase(connection);
  GRADRAIL_CHECK(erased == 1);
}

void PeerTable::close_joined() {
  std::vector<ShardPeer*> joined;
  for (const auto& [connection, peer] : peers_) {
    if (peer->phase != ShardPeer::Phase::handshake) joined.push_back(peer.get());
  }
  for (ShardPeer* peer : joined) close(*peer);
}

void PeerTable::expire(TimePoint now) {
  std::vector<ShardPeer*> expired;
  for (const auto& [connection, peer] : peers_) {
    const bool serves = peer->phase == ShardPeer::Phase::active || peer->phase == ShardPeer::Phase::primary;
    // A peer that serves has no deadline: the transport and the heartbeat detect its loss.
    if (!serves && now >= peer->phase_deadline) expired.push_back(peer.get());
  }
  for (ShardPeer* peer : expired) {
    if (peer->phase != ShardPeer::Phase::closing) {
      rate_limited_log_.write(fmt::format("{}: closed {}: its handshake did not complete in time",
                                          environment_.options.name, peer->connection->describe()));
    }
    close(*peer);
  }
  for (const Absent& absent : absent_) {
    if (now < absent.deadline || !environment_.options.on_lost) continue;
    environment_.options.on_lost(absent.worker, absent.incarnation,
                                 fmt::format("its data connection was lost ({}) and it did not return", absent.cause));
  }
  std::erase_if(absent_, [&](const Absent& absent) { return now >= absent.deadline; });
}

void PeerTable::update_unsettled(ShardPeer& peer) {
  const bool is_unsettled = !peer.is_settled();
  if (peer.is_counted_unsettled == is_unsettled) return;
  peer.is_counted_unsettled = is_unsettled;
  GRADRAIL_CHECK(is_unsettled || unsettled_ > 0);  // invariant 2
  is_unsettled ? ++unsettled_ : --unsettled_;
}

std::vector<PathTraffic> PeerTable::traffic() const {
  Traffic all = past_traffic_;
  for (const auto& [connection, peer] : peers_) add_traffic(*peer, all);
  std::vector<PathTraffic> result;
  for (auto& [name, path] : all) result.push_back(std::move(path));
  return result;
}

void PeerTable::add_traffic(const ShardPeer& peer, Traffic& traffic) {
  if (peer.bytes_in + peer.bytes_out == 0) return;
  const std::string name = peer.connection->path() + peer.mapped_text();
  PathTraffic& path = traffic[name];
  path.path = name;
  path.bytes_in += peer.bytes_in;
  path.bytes_out += peer.bytes_out;
}

}  // namespace gradrail::ps
