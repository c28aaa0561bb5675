// Data connections of a shard: greeting, mapping, farewell.
#include <algorithm>

#include "base/check.h"
#include "base/status.h"
#include "fmt/format.h"
#include "ps/control.pb.h"
#include "ps/shard.h"
#include "spdlog/spdlog.h"

namespace gradrail::ps {
namespace {

/// A connection that says nothing this long after it was accepted is none of ours.
constexpr auto kGreetingDeadline = std::chrono::seconds(5);
/// Mapping a worker's memory needs its process to answer once; it is waiting for our welcome, so it will.
constexpr auto kMappingDeadline = std::chrono::seconds(5);
/// Time for a refusal to be read before the connection closes.
constexpr auto kFarewell = std::chrono::seconds(1);

absl::Status send_welcome(transport::Connection& connection, const proto::Welcome& welcome) {
  const std::string bytes = welcome.SerializeAsString();
  return connection.send(absl::MakeConstSpan(reinterpret_cast<const std::byte*>(bytes.data()), bytes.size()));
}

}  // namespace

void Shard::handle(transport::Completion& completion) {
  using Kind = transport::Completion::Kind;
  if (completion.kind == Kind::connected) {
    auto peer = std::make_unique<ShardPeer>();
    peer->connection = completion.connection;
    peer->context_index = wait_set_.source_index();
    peer->phase_deadline = Clock::now() + kGreetingDeadline;
    completion.connection->set_user_data(reinterpret_cast<uint64_t>(peer.get()));
    peers_[completion.connection] = std::move(peer);
    ++unsettled_;
    return;
  }
  auto* peer = reinterpret_cast<ShardPeer*>(completion.connection->user_data());
  switch (completion.kind) {
    case Kind::put_arrived:
      if (peer->phase == ShardPeer::Phase::active) on_arrival(*peer, completion.immediate);
      break;
    case Kind::message:
      if (peer->phase == ShardPeer::Phase::greeting) greet(*peer, completion.message);
      break;
    case Kind::peer_lost: {
      const bool was_active = peer->phase == ShardPeer::Phase::active;
      const WorkerIndex worker = peer->worker;
      const uint64_t incarnation = peer->incarnation;
      drop(peer);
      if (was_active && options_.on_lost)
        options_.on_lost(worker, incarnation, std::string(message_of(completion.cause)));
      break;
    }
    default:
      break;  // the shard asks for no put_done and posts no get
  }
}

void Shard::greet(ShardPeer& peer, absl::Span<const std::byte> message) {
  proto::Hello hello;
  if (!hello.ParseFromArray(message.data(), static_cast<int>(message.size()))) {
    return refuse(peer, "the first message is not a Hello");
  }
  const auto token = tokens_.find(hello.token());
  if (hello.token().empty() || token == tokens_.end() || token->second.worker != hello.member().task_index() ||
      token->second.incarnation != hello.member().incarnation()) {
    return refuse(peer, "unknown token: join at the control plane first");
  }
  peer.worker = token->second.worker;
  peer.incarnation = token->second.incarnation;
  const auto import = [&](const std::string& key, transport::RemoteRegion& region) {
    absl::StatusOr<transport::RemoteRegion> imported = peer.connection->import(key);
    if (imported.ok()) region = *imported;
    return imported.status();
  };
  absl::Status imported = import(hello.parameters_key(), peer.parameters_remote);
  if (imported.ok()) imported = import(hello.returns_key(), peer.returns_remote);
  peer.gradients_offered = !hello.gradients_key().empty();
  if (imported.ok() && peer.gradients_offered) imported = import(hello.gradients_key(), peer.gradients_remote);
  if (!imported.ok()) return refuse(peer, fmt::format("region key: {}", message_of(imported)));
  peer.phase = ShardPeer::Phase::mapping;
  peer.phase_deadline = Clock::now() + kMappingDeadline;
  continue_mapping(peer);
}

void Shard::continue_mapping(ShardPeer& peer) {
  if (contexts_[peer.context_index]->capabilities().direct_map) {
    const absl::StatusOr<std::byte*> parameters = peer.connection->map(peer.parameters_remote);
    if (absl::IsResourceExhausted(parameters.status())) return;  // still under way
    if (!parameters.ok())
      return refuse(peer, fmt::format("parameters cannot be mapped: {}", message_of(parameters.status())));
    peer.parameters_mapped = reinterpret_cast<float*>(*parameters);
    if (peer.gradients_offered) {
      const absl::StatusOr<std::byte*> gradients = peer.connection->map(peer.gradients_remote);
      if (absl::IsResourceExhausted(gradients.status())) return;
      if (!gradients.ok())
        return refuse(peer, fmt::format("gradients cannot be mapped: {}", message_of(gradients.status())));
      peer.gradients_mapped = reinterpret_cast<const float*>(*gradients);
    }
  }
  if (const absl::Status admitted = admit_peer(peer); !admitted.ok()) refuse(peer, std::string(message_of(admitted)));
}

absl::Status Shard::admit_peer(ShardPeer& peer) {
  transport::Context& context = *contexts_[peer.context_index];
  const size_t header_bytes = bucket_count() * sizeof(SlotHeader);
  const size_t payload_bytes = range().count * sizeof(float);
  absl::StatusOr<SharedMemory> slots = SharedMemory::create("gradrail-slots", header_bytes + payload_bytes);
  if (!slots.ok()) return slots.status();
  absl::StatusOr<SharedMemory> returns =
      SharedMemory::create("gradrail-returns", bucket_count() * sizeof(ReturnHeader));
  if (!returns.ok()) return returns.status();
  peer.slots = *std::move(slots);
  peer.returns = *std::move(returns);
  absl::StatusOr<std::unique_ptr<transport::MemoryRegion>> slots_region =
      context.register_memory(peer.slots.span(), transport::Access::remote_write);
  if (!slots_region.ok()) return slots_region.status();
  absl::StatusOr<std::unique_ptr<transport::MemoryRegion>> returns_region =
      context.register_memory(peer.returns.span(), transport::Access::local);
  if (!returns_region.ok()) return returns_region.status();
  peer.slots_region = *std::move(slots_region);
  peer.returns_region = *std::move(returns_region);
  GRADRAIL_RETURN_IF_ERROR(probe_mapping(peer));
  peer.stored_version.assign(bucket_count(), UINT64_MAX);
  peer.parameters_sent.assign(bucket_count(), false);

  proto::Welcome welcome;
  welcome.set_slots_key(peer.slots_region->key());
  welcome.set_gradients_mapped(peer.gradients_mapped != nullptr);
  GRADRAIL_RETURN_IF_ERROR(send_welcome(*peer.connection, welcome));
  if (ShardPeer* former = peer_of(peer.worker); former != nullptr) retire_until(*former, Clock::now());
  if (by_worker_.size() <= peer.worker) by_worker_.resize(peer.worker + 1, nullptr);
  by_worker_[peer.worker] = &peer;
  peer.phase = ShardPeer::Phase::active;
  --unsettled_;
  spdlog::info("{}: worker {} connected: {}{}", options_.name, peer.worker, peer.connection->describe(),
               peer.gradients_mapped != nullptr ? " (mapped)" : "");
  return absl::OkStatus();
}

absl::Status Shard::probe_mapping(const ShardPeer& peer) {
  if (range().count == 0) return absl::OkStatus();
  // map() tells neither size nor rights, and what is stored past a region's end ends this process. A put and a get of
  // our range's last element are checked by the transport; the worker does not look at its memory before the Welcome.
  const size_t bytes = sizeof(float);
  if (peer.parameters_mapped != nullptr) {
    GRADRAIL_RETURN_IF_ERROR(
        peer.connection->put({parameters_regions_[peer.context_index].get(), (range().count - 1) * bytes, bytes},
                             {peer.parameters_remote, (range().first + range().count - 1) * bytes}, {}));
  }
  if (peer.gradients_mapped != nullptr) {
    GRADRAIL_RETURN_IF_ERROR(peer.connection->get({peer.returns_region.get(), 0, bytes},
                                                  {peer.gradients_remote, (range().first + range().count - 1) * bytes},
                                                  0));
  }
  return absl::OkStatus();
}

void Shard::refuse(ShardPeer& peer, const std::string& why) {
  spdlog::warn("{}: refused {}: {}", options_.name, peer.connection->describe(), why);
  if (peer.phase == ShardPeer::Phase::active) {
    retire_until(peer, Clock::now() + kFarewell);
    // Its heartbeat may beat on; without this sync would wait for gradients that can never come.
    if (options_.on_lost) options_.on_lost(peer.worker, peer.incarnation, fmt::format("it was refused: {}", why));
  }
  peer.phase = ShardPeer::Phase::dismissed;
  peer.phase_deadline = Clock::now() + kFarewell;
  proto::Welcome welcome;
  welcome.set_refused(why);
  send_welcome(*peer.connection, welcome).IgnoreError();  // best effort: it is going to be closed
}

void Shard::housekeeping() {
  const TimePoint now = Clock::now();
  std::vector<ShardPeer*> expired;
  for (auto& [connection, peer] : peers_) {
    if (peer->phase == ShardPeer::Phase::mapping) continue_mapping(*peer);
    if (peer->phase == ShardPeer::Phase::active) {
      if (!peer->backlog.empty()) send_backlog(*peer);
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
}

void Shard::add_path(const ShardPeer& peer, std::map<std::string, Stats::Path>& paths) {
  if (peer.bytes_in + peer.bytes_out == 0) return;
  const std::string described = peer.connection->describe();
  const std::string name =
      described.substr(0, described.find(' ')) + (peer.gradients_mapped != nullptr ? " mapped" : "");
  Stats::Path& path = paths[name];
  path.path = name;
  path.bytes_in += peer.bytes_in;
  path.bytes_out += peer.bytes_out;
}

void Shard::retire(const ShardPeer& peer) {
  by_worker_[peer.worker] = nullptr;
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
  if (peer->phase != ShardPeer::Phase::active || !peer->backlog.empty()) --unsettled_;
  if (peer_of(peer->worker) == peer) retire(*peer);
  transport::Connection* connection = peer->connection;
  transport::Context& context = *contexts_[peer->context_index];
  context.close(connection);  // before its regions go with the peer
  peers_.erase(connection);
}

ShardPeer* Shard::peer_of(WorkerIndex worker) const {
  return worker < by_worker_.size() ? by_worker_[worker] : nullptr;
}

}  // namespace gradrail::ps
