// Data connections of a shard: who comes, who goes, who is expected back.
#include <algorithm>

#include "base/status.h"
#include "fmt/format.h"
#include "ps/shard.h"
#include "spdlog/spdlog.h"

namespace gradrail::ps {
namespace {

/// A connection that says nothing for so long is none of ours. Together with what tcp gives strangers (its
/// hello_timeout, which goes before) no more than 5 s.
constexpr auto kGreetingDeadline = std::chrono::seconds(3);
/// Longer than a worker tries to come back over another path (its own limit is 20 s); whether it lives at all is the
/// control plane's to notice, and faster.
constexpr auto kReturnDeadline = std::chrono::seconds(30);

}  // namespace

void Shard::handle(transport::Completion& completion) {
  using Kind = transport::Completion::Kind;
  if (completion.kind == Kind::connected) {
    auto peer = std::make_unique<ShardPeer>();
    peer->connection = completion.connection;
    peer->context_index = wait_set_.source_index();
    peer->phase_deadline = Clock::now() + kGreetingDeadline;
    completion.connection->set_user_data(reinterpret_cast<uint64_t>(peer.get()));
    ShardPeer& accepted = *(peers_[completion.connection] = std::move(peer));
    ++unsettled_;
    return challenge(accepted);
  }
  if (replica_ != nullptr && completion.connection == replica_->connection()) return handle_replica(completion);
  auto* peer = reinterpret_cast<ShardPeer*>(completion.connection->user_data());
  switch (completion.kind) {
    case Kind::put_arrived:
      if (peer->phase == ShardPeer::Phase::active) {
        on_arrival(*peer, completion.immediate);
      } else if (peer->phase == ShardPeer::Phase::checking) {
        on_check(*peer, completion.immediate);
      } else if (peer->phase == ShardPeer::Phase::replica) {
        take_replica(*peer, completion.immediate);
      }
      break;
    case Kind::message:
      on_message(*peer, completion.message);
      break;
    case Kind::peer_lost:
      on_lost(*peer, std::string(message_of(completion.cause)));
      break;
    default:
      break;  // the shard asks for no put_done and posts no get but to probe
  }
}

void Shard::on_lost(ShardPeer& peer, const std::string& cause) {
  if (peer.phase == ShardPeer::Phase::active) {
    spdlog::warn("{}: lost {} to worker {}: {}; it may come back over another path", options_.name,
                 peer.connection->describe(), peer.worker, cause);
    absent_.push_back({peer.worker, peer.incarnation, Clock::now() + kReturnDeadline, cause});
  }
  if (peer.phase == ShardPeer::Phase::replica) {
    spdlog::warn("{}: lost {} to the shard that this one is the standby of: {}", options_.name,
                 peer.connection->describe(), cause);
  }
  drop(&peer);
}

void Shard::housekeeping() {
  const TimePoint now = Clock::now();
  std::vector<ShardPeer*> expired;
  for (auto& [connection, peer] : peers_) {
    if (peer->phase == ShardPeer::Phase::mapping) continue_mapping(*peer);
    if (peer->phase == ShardPeer::Phase::answering) answer_check(*peer);
    if (peer->phase == ShardPeer::Phase::active) {
      if (!peer->backlog.empty()) send_backlog(*peer);
    } else if (peer->phase == ShardPeer::Phase::replica) {
      answer_replica(*peer);
    } else if (now >= peer->phase_deadline) {
      expired.push_back(peer.get());
    }
  }
  for (ShardPeer* peer : expired) {
    if (peer->phase != ShardPeer::Phase::dismissed) {
      spdlog::warn("{}: closed {}: it did not introduce itself in time", options_.name, peer->connection->describe());
    }
    drop(peer);
  }
  give_up_absent(now);
}

void Shard::give_up_absent(TimePoint now) {
  for (const Absent& absent : absent_) {
    if (now < absent.deadline || !options_.on_lost) continue;
    options_.on_lost(absent.worker, absent.incarnation,
                     fmt::format("its data connection was lost ({}) and it did not come back", absent.cause));
  }
  std::erase_if(absent_, [&](const Absent& absent) { return now >= absent.deadline; });
}

void Shard::add_path(const ShardPeer& peer, std::map<std::string, Stats::Path>& paths) {
  if (peer.bytes_in + peer.bytes_out == 0) return;
  const std::string name = peer.connection->path() + peer.mapped_text();
  Stats::Path& path = paths[name];
  path.path = name;
  path.bytes_in += peer.bytes_in;
  path.bytes_out += peer.bytes_out;
}

void Shard::retire(const ShardPeer& peer) {
  by_worker_[peer.worker] = nullptr;
  forget_held(peer.worker);
  // What it pushed lies in slots that go with the connection; the worker repeats it when it comes back.
  protocol_->reconnect_worker(peer.worker, peer.incarnation);
}

void Shard::retire_until(ShardPeer& peer, TimePoint deadline) {
  retire(peer);
  if (peer.backlog.empty()) ++unsettled_;
  peer.backlog.clear();
  peer.phase = ShardPeer::Phase::dismissed;
  peer.phase_deadline = deadline;
}

void Shard::drop(ShardPeer* peer) {
  add_path(*peer, past_paths_);
  if (!peer->is_settled()) --unsettled_;
  if (peer_of(peer->worker) == peer) retire(*peer);
  transport::Connection* connection = peer->connection;
  transport::Context& context = *contexts_[peer->context_index];
  peer->pinned.clear();  // before what they pin is unmapped
  peer->device = {};
  context.close(connection);  // before its regions go with the peer
  peers_.erase(connection);
}

ShardPeer* Shard::peer_of(WorkerIndex worker) const {
  return worker < by_worker_.size() ? by_worker_[worker] : nullptr;
}

}  // namespace gradrail::ps
