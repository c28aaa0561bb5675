// The side of the workers: requests that arrive, and their answers.
#include <bit>
#include <cstring>
#include <limits>

#include "base/crc32c.h"
#include "base/status.h"
#include "fmt/format.h"
#include "ps/protocol/push_format.h"
#include "ps/protocol/return_format.h"
#include "worker/aggregator/session.h"

namespace gradrail::aggregator {

void Session::on_arrival(ps::ShardPeer& peer, uint64_t immediate) {
  if (immediate >= partition_.bucket_count())
    return peers_.refuse(peer, fmt::format("no bucket {} in this shard", immediate));
  const auto bucket = static_cast<uint32_t>(immediate);
  // A copy: the worker could change its slot between check and use.
  const ps::SlotHeader header = peer.slot_headers()[bucket];
  if (const absl::Status checked = check(peer, header, immediate); !checked.ok())
    return peers_.refuse(peer, std::string(message_of(checked)));
  const uint32_t slot = slot_of(peer.worker);
  if (!has_rate_of_others(peer, header)) return;
  peer.bytes_in += header.payload_bytes + sizeof(header);
  peer.return_headers()[bucket].has_crc = header.has_crc;
  if (!protocol_.on_request(slot, bucket, {header.kind, header.step, header.base_version})) return;
  if (peer.encoder != nullptr) peer.encoder->on_arrival(header);
  // The connection was not opened again while nothing waited for it.
  if ((connected_ & GroupProtocol::bit(slot)) == 0) want_shard(Clock::now(), kSettle);
  forward(bucket);
}

absl::Status Session::check(const ps::ShardPeer& peer, const ps::SlotHeader& header, uint64_t immediate) const {
  using ps::ArrivalKind;
  const auto bad = [&](std::string_view what) {
    return absl::InvalidArgumentError(fmt::format("slot header of bucket {}: {}", immediate, what));
  };
  if (header.magic != ps::SlotHeader::kMagic) return bad("wrong magic");
  if (header.bucket != immediate) return bad("is for another bucket");
  if (header.incarnation != peer.incarnation) return bad("of another incarnation");
  if (header.kind < ArrivalKind::push || header.kind > ArrivalKind::initialise) return bad("unknown kind");
  // false for NaN
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  if (!(header.rate == ps::kAgreedRate || (header.rate >= 0.0f && header.rate < kInfinity)))
    return bad("the learning rate is not a finite number, 0 or more");
  if (header.weight != 1.0f) return bad("a weight does not go with aggregators");
  if (ps::members_of(header) != 0) return bad("names members, and the connection has one worker");
  const ps::PushFormat format = format_of(header.kind);
  if (header.format != format.kind) return bad("the format is not the one of the run");
  const size_t elements = ps::has_payload(header.kind) ? partition_.bucket_range(header.bucket).count : 0;
  const size_t bytes = ps::packed_bytes(elements, format);
  if (header.payload_bytes != bytes) return bad("payload length is not the bucket's");
  if (header.has_crc == 0 || bytes == 0) return absl::OkStatus();
  if (crc32c(payload(peer, header.bucket, header.kind), bytes) == header.crc32c) return absl::OkStatus();
  return absl::DataLossError(fmt::format("bucket {}: payload does not match its CRC32C", immediate));
}

/// A sum has one learning rate. Refuses the worker with another one: of two, the one that was in no step before.
bool Session::has_rate_of_others(ps::ShardPeer& peer, const ps::SlotHeader& header) {
  if (header.kind != ps::ArrivalKind::push) return true;
  for (uint64_t left = protocol_.active(); left != 0; left &= left - 1) {
    const auto slot = static_cast<uint32_t>(std::countr_zero(left));
    if (slot == slot_of(peer.worker) || !protocol_.is_waiting(slot, header.bucket)) continue;
    const GroupProtocol::Request& request = protocol_.request(slot, header.bucket);
    if (request.kind != header.kind || request.step != header.step) continue;
    ps::ShardPeer& other = *peer_in(slot);
    const float rate = other.slot_headers()[header.bucket].rate;
    if (!ps::are_different_rates(header.rate, rate)) continue;
    if (peer.is_in_steps && !other.is_in_steps) {
      peers_.refuse(other, ps::different_rates(header.step, other.worker, rate, peer.worker, header.rate));
      continue;
    }
    peers_.refuse(peer, ps::different_rates(header.step, peer.worker, header.rate, other.worker, rate));
    return false;
  }
  return true;
}

ps::PushFormat Session::format_of(ps::ArrivalKind kind) const {
  return kind == ps::ArrivalKind::push ? partition_.push_format() : ps::PushFormat(ps::PushFormat::fp32);
}

const float* Session::payload(const ps::ShardPeer& peer, uint32_t bucket, ps::ArrivalKind kind) const {
  const std::byte* const at =
      peer.gradients_mapped != nullptr
          ? peer.mapped_gradient(partition_.map().elements(), partition_.bucket_range(bucket).first, format_of(kind))
          : peer.slots.memory.data() + partition_.places().region_payload_at(bucket);
  return reinterpret_cast<const float*>(at);
}

void Session::answer(uint32_t slot, uint32_t bucket, const ps::ReturnHeader& from_shard) {
  ps::ShardPeer& peer = *peer_in(slot);
  const ps::ElementRange range = partition_.bucket_range(bucket);
  size_t bytes = range.count * sizeof(float);
  const std::byte* parameters = partition_.store().parameters().data + partition_.offset(bucket) * sizeof(float);
  ps::ReturnHeader& header = peer.return_headers()[bucket];
  const uint8_t has_crc = header.has_crc;  // set by on_arrival()
  header = from_shard;
  const GroupProtocol::Request& request = protocol_.request(slot, bucket);
  header.step = request.step;
  peer.is_in_steps = peer.is_in_steps || request.kind == ps::ArrivalKind::push;
  header.incarnation = peer.incarnation;
  header.has_crc = has_crc;
  if (peer.encoder != nullptr) {
    const auto* const fresh = reinterpret_cast<const float*>(parameters);
    std::byte* const packed = peer.slots.memory.data() + partition_.places().region_payload_at(bucket);
    const ps::ReturnEncoder::Packed written =
        peer.encoder->pack(bucket, partition_.offset(bucket), {fresh, range.count}, packed);
    header.payload_bytes = written.bytes;
    header.answer = written.answer;
    parameters = packed;
    bytes = written.bytes;
  }
  header.crc32c = has_crc != 0 ? crc32c(parameters, bytes) : 0;
  if (peer.parameters_mapped != nullptr) std::memcpy(peer.mapped_parameter(range.first), parameters, bytes);
  peer.parameters_sent[bucket] = peer.parameters_mapped != nullptr;
  peer.bytes_out += bytes + sizeof(header);
  // Behind a backlog, or without room: answers leave in their order.
  if (peer.backlog.empty() && post_answer(peer, bucket)) return;
  peer.backlog.push_back(bucket);
  peers_.update_unsettled(peer);
}

/// False: the transport has no room. Any other failure is followed by peer_lost.
bool Session::post_answer(ps::ShardPeer& peer, uint32_t bucket) {
  const ps::ElementRange range = partition_.bucket_range(bucket);
  const uint64_t offset = partition_.offset(bucket);
  if (!peer.parameters_sent[bucket]) {
    transport::LocalSlice source = {parameters_.host(peer.context_index), offset * sizeof(float),
                                    range.count * sizeof(float)};
    transport::RemoteSlice target = {peer.offer.parameters, range.first * sizeof(float)};
    if (peer.encoder != nullptr) {
      source = {peer.slots.region.get(), partition_.places().region_payload_at(bucket),
                peer.return_headers()[bucket].payload_bytes};
      target = {peer.offer.returns, ps::return_payload_at(partition_.bucket_count(), bucket, offset)};
    }
    const absl::Status posted = peer.connection->put(source, target, {});
    if (absl::IsResourceExhausted(posted)) return false;
    peer.parameters_sent[bucket] = true;
  }
  const size_t at = bucket * sizeof(ps::ReturnHeader);
  const absl::Status posted =
      peer.connection->put({.region = peer.returns.region.get(), .offset = at, .bytes = sizeof(ps::ReturnHeader)},
                           {peer.offer.returns, at}, {.immediate = bucket});
  return !absl::IsResourceExhausted(posted);
}

void Session::post_backlog(ps::ShardPeer& peer) {
  while (!peer.backlog.empty() && post_answer(peer, peer.backlog.front())) peer.backlog.pop_front();
  peers_.update_unsettled(peer);
}

}  // namespace gradrail::aggregator
