// A data connection of a shard from its first message until it is active: admitted, mapped, checked (control.proto).
#include <algorithm>

#include "base/random_bits.h"
#include "base/status.h"
#include "fmt/format.h"
#include "ps/call_proof.h"
#include "ps/control.pb.h"
#include "ps/data_message.h"
#include "ps/path_check.h"
#include "ps/shard.h"
#include "spdlog/spdlog.h"

namespace gradrail::ps {
namespace {

/// Mapping a worker's memory needs its process to answer once; it is waiting for our welcome, so it will.
constexpr auto kMappingDeadline = std::chrono::seconds(5);
/// For one transfer over a path that works, however slow.
constexpr auto kCheckDeadline = std::chrono::seconds(10);
/// A worker switches between two of its steps, which may be long.
constexpr auto kStandbyDeadline = std::chrono::minutes(2);
constexpr size_t kChallengeBytes = 16;
/// Time for a refusal to be read before the connection closes.
constexpr auto kFarewell = std::chrono::seconds(1);

}  // namespace

void Shard::challenge(ShardPeer& peer) {
  peer.challenge = random_bytes(kChallengeBytes);
  proto::ToWorker message;
  message.set_challenge(peer.challenge);
  if (send_message(*peer.connection, message).ok()) return;
  // It is lost already, and the completion that says so may lie behind this one: nothing is closed before that.
  peer.phase = ShardPeer::Phase::dismissed;
  peer.phase_deadline = Clock::now();
}

void Shard::on_message(ShardPeer& peer, absl::Span<const std::byte> bytes) {
  if (peer.phase == ShardPeer::Phase::dismissed) return;
  proto::ToShard message;
  const bool parsed = message.ParseFromArray(bytes.data(), static_cast<int>(bytes.size()));
  if (peer.phase == ShardPeer::Phase::greeting) {
    if (parsed && message.has_replica_hello()) return greet_replica(peer, message.replica_hello());
    return parsed && message.has_hello() ? greet(peer, message.hello())
                                         : refuse(peer, "the first message is not a Hello");
  }
  if (parsed && message.has_ready() && peer.phase == ShardPeer::Phase::standby) return activate(peer);
  if (parsed && message.has_replica_level() && peer.phase == ShardPeer::Phase::replica) {
    was_level_ = true;
    return;
  }
  refuse(peer, "a message out of turn");
}

void Shard::greet(ShardPeer& peer, const proto::Hello& hello) {
  const auto admitted = admitted_.find(hello.member().task_index());
  if (admitted == admitted_.end() || admitted->second.incarnation != hello.member().incarnation() ||
      !same_bytes(hello.proof(), mac_of(admitted->second.key, {peer.challenge}))) {
    return refuse(peer, "not a member of this run: join at the control plane first");
  }
  peer.worker = admitted->first;
  peer.incarnation = admitted->second.incarnation;
  peer.check_seed = hello.check_seed();
  const auto import = [&](const std::string& key, transport::RemoteRegion& region) {
    absl::StatusOr<transport::RemoteRegion> imported = peer.connection->import(key);
    if (imported.ok()) region = *imported;
    return imported.status();
  };
  absl::Status imported = import(hello.parameters_key(), peer.parameters_remote);
  if (imported.ok()) imported = import(hello.returns_key(), peer.returns_remote);
  peer.gradients_offered = !hello.gradients_key().empty();
  peer.device_key = hello.device_key();
  peer.gpu_memory = hello.gpu_memory().empty() ? "" : hello.gpu_memory() == "dmabuf" ? "dmabuf" : "peermem";
  peer.check_at = hello.check_at();
  peer.host_slots = hello.host_slots();
  if (imported.ok() && peer.gradients_offered) imported = import(hello.gradients_key(), peer.gradients_remote);
  if (!imported.ok()) return refuse(peer, fmt::format("region key: {}", message_of(imported)));
  peer.phase = ShardPeer::Phase::mapping;
  peer.phase_deadline = Clock::now() + kMappingDeadline;
  continue_mapping(peer);
}

void Shard::continue_mapping(ShardPeer& peer) {
  if (!peer.device_key.empty()) map_device(peer);
  const bool may_map = !peer.on_device() && peer.gpu_memory.empty();
  if (contexts_[peer.context_index]->capabilities().direct_map && may_map) {
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
  if (const absl::Status welcomed = welcome(peer); !welcomed.ok()) refuse(peer, std::string(message_of(welcomed)));
}

void Shard::map_device(ShardPeer& peer) {
  absl::StatusOr<DeviceVariables> mapped = store_->map_device(peer.device_key, setup_.map.elements());
  peer.device_key.clear();  // one attempt
  if (!mapped.ok()) {
    peer.device_refused = message_of(mapped.status());
    return;
  }
  if (const std::string wrong = check_mapped(*mapped, peer.check_seed); !wrong.empty()) {
    peer.device_refused = wrong;
    return;
  }
  peer.device = *std::move(mapped);
  peer.parameters_mapped = peer.device.parameters;
  peer.gradients_mapped = peer.device.gradients;
}

absl::Status Shard::welcome(ShardPeer& peer) {
  transport::Context& context = *contexts_[peer.context_index];
  const size_t slot_bytes = bucket_count() * sizeof(SlotHeader) + range().count * sizeof(float);
  absl::StatusOr<transport::RegisteredMemory> slots =
      transport::make_registered(registered_, context, "gradrail-slots", std::max(slot_bytes, kCheckBytes),
                                 transport::Access::remote_write, options_.place_memory);
  if (!slots.ok()) return slots.status();
  const size_t return_bytes = bucket_count() * sizeof(ReturnHeader);
  absl::StatusOr<transport::RegisteredMemory> returns =
      transport::make_registered(registered_, context, "gradrail-returns", std::max(return_bytes, kCheckBytes),
                                 transport::Access::local, options_.place_memory);
  if (!returns.ok()) return returns.status();
  peer.slots = *std::move(slots);
  peer.returns = *std::move(returns);
  GRADRAIL_RETURN_IF_ERROR(probe_mapping(peer));
  if (const absl::Status made = make_gpu_slots(peer); !made.ok()) {
    spdlog::info("{}: worker {} puts gradients into host memory: {}", options_.name, peer.worker, message_of(made));
  }
  if (!peer.on_device()) pin(peer);
  peer.stored_version.assign(bucket_count(), UINT64_MAX);
  peer.parameters_sent.assign(bucket_count(), false);
  if (setup_.mode.waits()) peer.arrived_at.assign(bucket_count(), TimePoint());

  proto::ToWorker message;
  message.mutable_welcome()->set_slots_key(peer.slots.region->key());
  if (uses_gpu(peer)) {
    message.mutable_welcome()->set_payload_key(peer.payload.region->key());
    message.mutable_welcome()->set_answer_seed(gpu_answer_seed_);
  }
  message.mutable_welcome()->set_gradients_mapped(peer.gradients_mapped != nullptr);
  message.mutable_welcome()->set_device_mapped(peer.on_device());
  message.mutable_welcome()->set_device_refused(peer.device_refused);
  GRADRAIL_RETURN_IF_ERROR(send_message(*peer.connection, message));
  peer.phase = ShardPeer::Phase::checking;
  peer.phase_deadline = Clock::now() + kCheckDeadline;
  return absl::OkStatus();
}

void Shard::pin(ShardPeer& peer) {
  const auto range_of = [this](const float* model) {
    // The mapping is the worker's whole model; the store reads and writes our part of it.
    return MemorySpan{.data = reinterpret_cast<std::byte*>(const_cast<float*>(model + range().first)),
                      .bytes = range().count * sizeof(float)};
  };
  peer.pinned.push_back(
      store_->pin(peer.gradients_mapped != nullptr ? range_of(peer.gradients_mapped) : peer.slots.memory.span()));
  if (peer.parameters_mapped != nullptr) peer.pinned.push_back(store_->pin(range_of(peer.parameters_mapped)));
}

absl::Status Shard::probe_mapping(const ShardPeer& peer) {
  if (range().count == 0 || peer.on_device()) return absl::OkStatus();  // map_device() knows the size
  // map() tells neither size nor rights, and what is stored past a region's end ends this process. A put and a get of
  // our range's last element are checked by the transport; the worker does not look at its memory before the Welcome.
  const size_t bytes = sizeof(float);
  if (peer.parameters_mapped != nullptr) {
    GRADRAIL_RETURN_IF_ERROR(
        peer.connection->put({parameters_regions_[peer.context_index].get(), (range().count - 1) * bytes, bytes},
                             {peer.parameters_remote, (range().first + range().count - 1) * bytes}, {}));
  }
  if (peer.gradients_mapped != nullptr) {
    GRADRAIL_RETURN_IF_ERROR(peer.connection->get({peer.returns.region.get(), 0, bytes},
                                                  {peer.gradients_remote, (range().first + range().count - 1) * bytes},
                                                  0));
  }
  return absl::OkStatus();
}

void Shard::on_check(ShardPeer& peer, uint64_t immediate) {
  if (immediate != kCheckImmediate) return refuse(peer, "a push before the path was checked");
  if (const std::string wrong = compare_arrived_check(peer); !wrong.empty()) return refuse(peer, wrong);
  fill_check({peer.returns.memory.data(), kCheckBytes}, check_answer_seed(peer.check_seed));
  peer.phase = ShardPeer::Phase::answering;
  answer_check(peer);
}

void Shard::answer_check(ShardPeer& peer) {
  const transport::LocalSlice pattern = check_answer(peer);
  if (!peer.gpu_memory.empty() && !peer.check_put) {
    // What parameters are put into is what must be seen to work: notices go elsewhere.
    const absl::Status posted = peer.connection->put(pattern, {peer.parameters_remote, peer.check_at}, {});
    if (absl::IsResourceExhausted(posted)) return;
    if (!posted.ok()) return refuse(peer, fmt::format("the checked transfer: {}", message_of(posted)));
    peer.check_put = true;
  }
  const absl::Status posted = peer.connection->put(pattern, {peer.returns_remote, 0}, {.immediate = kCheckImmediate});
  if (absl::IsResourceExhausted(posted)) return;
  if (!posted.ok()) return refuse(peer, fmt::format("the checked transfer: {}", message_of(posted)));
  peer.phase = ShardPeer::Phase::standby;
  peer.phase_deadline = Clock::now() + kStandbyDeadline;
}

void Shard::activate(ShardPeer& peer) {
  proto::ToWorker message;
  message.mutable_active();
  if (const absl::Status sent = send_message(*peer.connection, message); !sent.ok()) {
    return refuse(peer, std::string(message_of(sent)));
  }
  if (ShardPeer* former = peer_of(peer.worker); former != nullptr) retire_until(*former, Clock::now());
  std::erase_if(absent_, [&](const Absent& absent) { return absent.worker == peer.worker; });
  if (by_worker_.size() <= peer.worker) by_worker_.resize(peer.worker + 1, nullptr);
  by_worker_[peer.worker] = &peer;
  peer.phase = ShardPeer::Phase::active;
  --unsettled_;
  spdlog::info("{}: worker {} connected: {}{}; registered so far: {}", options_.name, peer.worker,
               peer.connection->describe(), peer.mapped_text(), registered_.text());
}

void Shard::refuse(ShardPeer& peer, const std::string& why) {
  spdlog::warn("{}: refused {}: {}", options_.name, peer.connection->describe(), why);
  if (peer.phase == ShardPeer::Phase::active) {
    retire_until(peer, Clock::now() + kFarewell);
    // Its heartbeat may beat on; without this sync would wait for gradients that can never come.
    if (options_.on_lost) options_.on_lost(peer.worker, peer.incarnation, fmt::format("it was refused: {}", why));
  }
  if (peer.is_settled()) ++unsettled_;  // a replica
  peer.phase = ShardPeer::Phase::dismissed;
  peer.phase_deadline = Clock::now() + kFarewell;
  proto::ToWorker message;
  message.set_refused(why);
  send_message(*peer.connection, message).IgnoreError();  // best effort: it is going to be closed
}

}  // namespace gradrail::ps
