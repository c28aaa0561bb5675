// The messages of the handshake and the states between them.
#include "ps/shard/handshake.h"

#include "base/check.h"
#include "base/log.h"
#include "base/random_bits.h"
#include "base/status.h"
#include "fmt/format.h"
#include "ps/protocol/control.pb.h"
#include "ps/protocol/data_message.h"
#include "ps/protocol/mac.h"
#include "ps/protocol/path_check.h"

namespace gradrail::ps {
namespace {

/// A mapping needs one answer of the worker's process, which waits for Welcome and has nothing else to do.
constexpr auto kMappingDeadline = std::chrono::seconds(5);
/// Time limit of one transfer of kCheckBytes over a working path, even over a slow one.
constexpr auto kCheckDeadline = std::chrono::seconds(10);
/// A worker changes to this connection between two of its steps, and a step may be long.
constexpr auto kValidatedDeadline = std::chrono::minutes(2);
constexpr size_t kChallengeBytes = 16;

}  // namespace

void Handshake::send_challenge(ShardPeer& peer) {
  peer.challenge = random_bytes(kChallengeBytes);
  proto::ToWorker message;
  message.set_challenge(peer.challenge);
  if (send_message(*peer.connection, message).ok()) return;
  // The connection is lost already. Its completion may follow in the same batch, so the peer must not be closed here.
  peers_.start_closing(peer, Clock::now());
}

void Handshake::on_message(ShardPeer& peer, absl::Span<const std::byte> bytes) {
  using Phase = ShardPeer::Phase;
  // A refused peer stays for the grace period, and its messages of before may still arrive.
  if (peer.phase == Phase::closing) return;
  proto::ToShard message;
  const bool parsed = message.ParseFromArray(bytes.data(), static_cast<int>(bytes.size()));
  if (peer.phase == Phase::handshake) {
    if (peers_.is_ending()) return peers_.refuse(peer, "this parameter server is ending");
    if (parsed && message.has_join_replication()) return backup_.accept_replication(peer, message.join_replication());
    return parsed && message.has_join_path() ? accept_join_path(peer, message.join_path())
                                             : peers_.refuse(peer, "the first message is not a JoinPath");
  }
  if (parsed && message.has_ready() && peer.phase == Phase::validated) return activate(peer);
  if (parsed && message.has_backup_in_sync() && peer.phase == Phase::primary) return backup_.on_level();
  peers_.refuse(peer, "a message out of turn");
}

void Handshake::advance(ShardPeer& peer) {
  if (peer.phase == ShardPeer::Phase::mapping) map_memory(peer);
  if (peer.phase == ShardPeer::Phase::answering) answer_pattern(peer);
}

void Handshake::accept_join_path(ShardPeer& peer, const proto::JoinPath& join_path) {
  if (!proves(peer, join_path.member(), join_path.proof()))
    return peers_.refuse(peer, "not a member of this run: join at the control plane first");
  GRADRAIL_CHECK(partition_.is_set_up());  // admit() requires it
  peer.worker = join_path.member().task_index();
  peer.incarnation = join_path.member().incarnation();
  if (const absl::Status imported = import_offer(peer, join_path); !imported.ok()) {
    return peers_.refuse(peer, fmt::format("region key: {}", message_of(imported)));
  }
  peer.phase = ShardPeer::Phase::mapping;
  peer.phase_deadline = Clock::now() +
                        transport::scaled_limit(kMappingDeadline, environment_.options.open.path_timeout) +
                        allocation_time(partition_.range().count * sizeof(float));
  map_memory(peer);
}

bool Handshake::proves(const ShardPeer& peer, const proto::Member& member, const std::string& proof) const {
  const PeerTable::Admission* const admission = peers_.admission(member.task_index());
  return admission != nullptr && admission->incarnation == member.incarnation() &&
         same_bytes(proof, mac_of(admission->key, {peer.challenge}));
}

absl::Status Handshake::import_offer(ShardPeer& peer, const proto::JoinPath& join_path) {
  ShardPeer::Offer& offer = peer.offer;
  offer.check_seed = join_path.check_seed();
  offer.has_gradients = !join_path.gradients_key().empty();
  offer.device_key = join_path.device_key();
  // Only these two values are kept: logs and metrics contain the text.
  offer.gpu_memory = join_path.gpu_memory().empty() ? "" : join_path.gpu_memory() == "dmabuf" ? "dmabuf" : "peermem";
  offer.check_offset = join_path.check_at();
  offer.host_slots = join_path.host_slots();
  const auto import = [&](const std::string& key, transport::RemoteRegion& region) {
    const absl::StatusOr<transport::RemoteRegion> imported = peer.connection->import(key);
    if (imported.ok()) region = *imported;
    return imported.status();
  };
  GRADRAIL_RETURN_IF_ERROR(import(join_path.parameters_key(), offer.parameters));
  GRADRAIL_RETURN_IF_ERROR(import(join_path.returns_key(), offer.returns));
  return offer.has_gradients ? import(join_path.gradients_key(), offer.gradients) : absl::OkStatus();
}

void Handshake::map_memory(ShardPeer& peer) {
  // GPU memory first: with it mapped, the exchange needs no host memory of the worker.
  if (!peer.offer.device_key.empty()) map_device_memory(peer);
  const absl::Status mapped = map_host_memory(peer);
  if (absl::IsResourceExhausted(mapped)) return;  // the mapping is under way: advance() repeats the call
  const absl::Status welcomed = mapped.ok() ? send_welcome(peer) : mapped;
  if (!welcomed.ok()) peers_.refuse(peer, std::string(message_of(welcomed)));
}

absl::Status Handshake::send_welcome(ShardPeer& peer) {
  GRADRAIL_RETURN_IF_ERROR(allocate_slots(peer));
  // The probe follows the allocation: it reads into the return region.
  GRADRAIL_RETURN_IF_ERROR(probe_mapping(peer));
  if (const absl::Status made = allocate_gpu_slots(peer); !made.ok()) {
    log_info("{}: worker {} puts gradients into host memory: {}", environment_.options.name, peer.worker,
             message_of(made));
  }
  if (!peer.is_on_device()) pin(peer);
  const uint32_t bucket_count = partition_.bucket_count();
  // No version: the memory behind this connection holds nothing, so that the first answer copies.
  peer.stored_version.assign(bucket_count, UINT64_MAX);
  peer.posted.assign(bucket_count, 0);
  if (const ReturnFormat format = partition_.return_format(); format != ReturnFormat::fp32)
    peer.encoder = std::make_unique<ReturnEncoder>(format, bucket_count, partition_.returned());
  if (partition_.mode().waits()) peer.arrived_at.assign(bucket_count, TimePoint());

  proto::ToWorker message;
  proto::Welcome& welcome = *message.mutable_welcome();
  welcome.set_slots_key(peer.slots.region->key());
  welcome.set_slot_bytes(partition_.slot_bytes());
  if (peer.uses_gpu()) {
    welcome.set_payload_key(peer.payload.region->key());
    welcome.set_answer_seed(parameters_.gpu_check_seed());
  }
  welcome.set_gradients_mapped(peer.gradients_mapped != nullptr);
  welcome.set_device_mapped(peer.is_on_device());
  welcome.set_device_refused(peer.device_refused);
  GRADRAIL_RETURN_IF_ERROR(send_message(*peer.connection, message));
  peer.phase = ShardPeer::Phase::checking;
  // The worker maps the slots for its first put.
  peer.phase_deadline = Clock::now() + transport::scaled_limit(kCheckDeadline, environment_.options.open.path_timeout) +
                        allocation_time(partition_.range().count * sizeof(float));
  return absl::OkStatus();
}

void Handshake::on_pattern(ShardPeer& peer, uint64_t immediate) {
  if (immediate != kCheckImmediate) return peers_.refuse(peer, "a push before the path was checked");
  if (const std::string wrong = check_arrived_pattern(peer); !wrong.empty()) return peers_.refuse(peer, wrong);
  GRADRAIL_CHECK(peer.returns.memory.bytes() >= kCheckBytes);
  fill_check({peer.returns.memory.data(), kCheckBytes},
             check_answer_seed(check_seed_of_lane(peer.offer.check_seed, peer.check_lane)));
  peer.phase = ShardPeer::Phase::answering;
  answer_pattern(peer);
}

void Handshake::answer_pattern(ShardPeer& peer) {
  const transport::LocalSlice pattern = pattern_source(peer);
  const auto refuse = [&](const absl::Status& posted) {
    peers_.refuse(peer, fmt::format("the checked transfer: {}", message_of(posted)));
  };
  if (!peer.offer.gpu_memory.empty() && !peer.is_check_put) {
    // The registration to check is that of the parameters; notices use another one.
    const absl::Status posted =
        peer.connection->put(pattern, {peer.offer.parameters, peer.offer.check_offset}, {.lane = peer.check_lane});
    if (absl::IsResourceExhausted(posted)) return;
    if (!posted.ok()) return refuse(posted);
    // The second put may find no room; the first one is then not repeated.
    peer.is_check_put = true;
  }
  const absl::Status posted =
      peer.connection->put(pattern, {peer.offer.returns, 0}, {.immediate = kCheckImmediate, .lane = peer.check_lane});
  if (absl::IsResourceExhausted(posted)) return;
  if (!posted.ok()) return refuse(posted);
  if (++peer.check_lane < peer.connection->lanes()) {
    peer.is_check_put = false;
    peer.phase = ShardPeer::Phase::checking;
    return;
  }
  peer.phase = ShardPeer::Phase::validated;
  peer.phase_deadline = Clock::now() + kValidatedDeadline;
}

void Handshake::activate(ShardPeer& peer) {
  proto::ToWorker message;
  // Sent before the change: when it cannot leave, the former connection stays in use.
  message.mutable_active();
  if (const absl::Status sent = send_message(*peer.connection, message); !sent.ok()) {
    return peers_.refuse(peer, std::string(message_of(sent)));
  }
  peers_.activate(peer);
  log_info("{}: worker {} connected: {}{}; registered so far: {}", environment_.options.name, peer.worker,
           peer.connection->describe(), peer.mapped_text(), environment_.registered.text());
}

}  // namespace gradrail::ps
