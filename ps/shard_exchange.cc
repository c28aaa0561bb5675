// The hot path of a shard: a header has arrived, the protocol decides, the kernels apply, the answer goes back.
#include <algorithm>
#include <cstring>

#include "base/check.h"
#include "base/crc32c.h"
#include "base/log.h"
#include "base/status.h"
#include "fmt/format.h"
#include "ps/shard.h"

namespace gradrail::ps {
namespace {

uint64_t nanoseconds(Duration duration) {
  return static_cast<uint64_t>(std::chrono::duration_cast<std::chrono::nanoseconds>(duration).count());
}

}  // namespace

const float* Shard::parameters_of(uint32_t bucket) const {
  return store_->parameters_at(bucket_range(bucket).first - range().first);
}

const float* Shard::gradient(const ShardPeer& peer, uint32_t bucket) const {
  const ElementRange where = bucket_range(bucket);
  if (peer.gradients_mapped != nullptr) return peer.gradients_mapped + where.first;
  if (uses_gpu(peer)) {
    return reinterpret_cast<const float*>(peer.payload.slots.memory.data) + (where.first - range().first);
  }
  const std::byte* payload = peer.slots.memory.data() + bucket_count() * sizeof(SlotHeader);
  return reinterpret_cast<const float*>(payload) + (where.first - range().first);
}

absl::Status Shard::check(const ShardPeer& peer, const SlotHeader& header, uint64_t immediate) {
  const auto bad = [&](std::string_view what) {
    return absl::InvalidArgumentError(fmt::format("slot header of bucket {}: {}", immediate, what));
  };
  if (header.magic != SlotHeader::kMagic) return bad("wrong magic");
  if (header.bucket != immediate) return bad("is for another bucket");
  if (header.incarnation != peer.incarnation) return bad("of another incarnation");
  const bool has_payload = header.kind != ArrivalKind::pull;
  const uint64_t expected = has_payload ? bucket_range(header.bucket).count * sizeof(float) : 0;
  if (header.payload_bytes != expected) return bad("payload length is not the bucket's");
  if (header.kind != ArrivalKind::push && header.kind != ArrivalKind::pull && header.kind != ArrivalKind::initialise) {
    return bad("unknown kind");
  }
  if (header.has_crc != 0 && peer.on_device()) return bad("has a checksum, which memory of a GPU is not given");
  if (header.has_crc == 0 || !has_payload) return absl::OkStatus();
  const absl::StatusOr<uint32_t> crc = payload_crc(peer, header.bucket);
  if (!crc.ok()) return crc.status();
  if (*crc == header.crc32c) return absl::OkStatus();
  return absl::DataLossError(fmt::format("bucket {}: payload does not match its CRC32C", immediate));
}

void Shard::on_arrival(ShardPeer& peer, uint64_t immediate) {
  if (immediate >= bucket_count()) return refuse(peer, fmt::format("no bucket {} in this shard", immediate));
  // A copy: the worker could change its slot between check and use.
  const SlotHeader header = peer.slot_headers()[immediate];
  mark_arrival(peer.worker, static_cast<uint32_t>(immediate), header.step);
  if (uses_gpu(peer)) must(store_->flush_gpu());
  if (failed_) return;
  if (const absl::Status checked = check(peer, header, immediate); !checked.ok()) {
    return refuse(peer, std::string(message_of(checked)));
  }
  peer.bytes_in += header.payload_bytes + sizeof(SlotHeader);
  peer.return_headers()[immediate].has_crc = header.has_crc;
  if (!peer.arrived_at.empty()) peer.arrived_at[immediate] = decided_at_ = Clock::now();
  actions_.clear();
  protocol_->on_arrival({.worker = peer.worker,
                         .incarnation = peer.incarnation,
                         .kind = header.kind,
                         .bucket = header.bucket,
                         .step = header.step,
                         .base_version = header.base_version},
                        actions_);
  run_actions();
}

void Shard::mark(Mark::Kind kind, const Action& action) {
  if (!recorder_.is_on()) return;
  for (const WorkerIndex worker : action.contributors) {
    recorder_.record(
        {.step = action.step, .worker = worker, .shard = setup_.shard_index, .bucket = action.bucket, .kind = kind});
  }
}

void Shard::mark_arrival(WorkerIndex worker, uint32_t bucket, uint64_t step) {
  if (!recorder_.is_on()) return;
  Mark mark{.step = step, .worker = worker, .shard = setup_.shard_index, .bucket = bucket, .kind = Mark::Kind::noticed};
  recorder_.record(mark, noticed_at_);
  mark.kind = Mark::Kind::taken;
  recorder_.record(mark);
}

/// A store that fails has lost what everybody works on: nothing of it is told to anybody any more.
void Shard::must(const absl::Status& stored) {
  if (stored.ok() || failed_) return;
  failed_ = true;
  const std::string cause = fmt::format("{}: {}", options_.name, message_of(stored));
  spdlog::error("{}", cause);
  if (options_.on_failed) options_.on_failed(cause);
}

void Shard::run_actions() {
  for (const Action& action : actions_) {
    if (failed_) return;
    switch (action.kind) {
      case Action::Kind::initialise:
        initialise(action);
        break;
      case Action::Kind::apply:
        apply_update(action);
        break;
      case Action::Kind::answer:
        if (!holds(action)) answer(action);
        break;
      case Action::Kind::refuse:
        if (ShardPeer* peer = peer_of(action.worker); peer != nullptr) refuse(*peer, action.reason);
        break;
    }
  }
}

void Shard::initialise(const Action& action) {
  const ShardPeer* chief = peer_of(action.contributors[0]);
  GRADRAIL_CHECK(chief != nullptr);
  const ElementRange where = bucket_range(action.bucket);
  must(store_->set(where.first - range().first, {gradient(*chief, action.bucket), where.count}));
  changed(action.bucket);
}

void Shard::apply_update(const Action& action) {
  const ElementRange where = bucket_range(action.bucket);
  mark(Mark::Kind::applying, action);
  absl::InlinedVector<const float*, kMaxGradients> gradients;
  absl::InlinedVector<float*, kMaxTargets> targets;
  for (const WorkerIndex worker : action.contributors) {
    ShardPeer* peer = peer_of(worker);
    GRADRAIL_CHECK(peer != nullptr);  // a worker whose connection went was removed from the protocol first
    gradients.push_back(gradient(*peer, action.bucket));
    // With a standby nothing reaches a worker's memory that the standby does not have: answer() stores it.
    if (peer->parameters_mapped != nullptr && targets.size() < kMaxTargets && replica_ == nullptr && !replica_unsure_) {
      targets.push_back(peer->parameters_mapped + where.first);
      // What is not computed is not stored on the way either: answer() does.
      if (!(options_.ablation.no_sum && options_.ablation.no_optimizer))
        peer->stored_version[action.bucket] = action.version;
    }
  }
  if (options_.ablation.any()) {
    apply_in_part(where, absl::MakeSpan(gradients), absl::MakeSpan(targets), action.version);
  } else {
    must(store_->update(where.first - range().first, where.count, gradients, targets, action.version));
  }
  ++updates_;
  changed(action.bucket);
  mark(Mark::Kind::applied, action);
}

void Shard::apply_in_part(ElementRange where, absl::Span<const float*> gradients, absl::Span<float*> targets,
                          uint64_t version) {
  const Ablation& left_out = options_.ablation;
  if (left_out.no_return) targets = {};
  if (left_out.no_sum) gradients = gradients.first(1);
  const size_t offset = where.first - range().first;
  if (!left_out.no_optimizer) {
    must(store_->update(offset, where.count, gradients, targets, version));
  } else if (!left_out.no_sum) {
    store_mean(reinterpret_cast<float*>(store_->parameters().data) + offset, where.count, gradients, targets);
  }
}

void Shard::answer(const Action& action) {
  ShardPeer* peer = peer_of(action.worker);
  if (peer == nullptr) return;  // its connection is gone; the answer is repeated when it comes back
  ReturnHeader& header = peer->return_headers()[action.bucket];
  const uint16_t has_crc = header.has_crc;
  header = {.bucket = action.bucket,
            .step = action.step,
            .version = action.version,
            .staleness = action.staleness,
            .incarnation = peer->incarnation,
            .has_crc = has_crc,
            .dropped = action.dropped};
  if (!peer->arrived_at.empty()) header.waited_ns = nanoseconds(decided_at_ - peer->arrived_at[action.bucket]);
  if (action.dropped) ++dropped_;
  const ElementRange where = bucket_range(action.bucket);
  if (has_crc != 0) {
    const float* sent = parameters_of(action.bucket);
    if (const transport::LocalSlice copy = checked_copy(*peer, action.bucket); copy.region != nullptr) {
      std::byte* const there = peer->slots.memory.data() + copy.offset;
      std::memcpy(there, sent, copy.bytes);
      sent = reinterpret_cast<const float*>(there);
    }
    header.crc32c = crc32c(sent, where.count * sizeof(float));
  }
  const bool returns = !options_.ablation.no_return;
  if (returns && peer->parameters_mapped != nullptr && peer->stored_version[action.bucket] != action.version) {
    must(store_->copy_out(where.first - range().first, where.count, peer->parameters_mapped + where.first));
    if (failed_) return;
    peer->stored_version[action.bucket] = action.version;
  }
  peer->bytes_out += where.count * sizeof(float) + sizeof(ReturnHeader);
  peer->parameters_sent[action.bucket] = peer->parameters_mapped != nullptr || !returns;
  if (peer->backlog.empty() && send_answer(*peer, action.bucket)) return;
  if (peer->backlog.empty()) ++unsettled_;
  peer->backlog.push_back(action.bucket);
}

transport::LocalSlice Shard::checked_copy(const ShardPeer& peer, uint32_t bucket) const {
  if (peer.return_headers()[bucket].has_crc == 0 || peer.parameters_mapped != nullptr || uses_gpu(peer)) return {};
  const ElementRange where = bucket_range(bucket);
  return {.region = peer.slots.region.get(),
          .offset = bucket_count() * sizeof(SlotHeader) + (where.first - range().first) * sizeof(float),
          .bytes = where.count * sizeof(float)};
}

bool Shard::send_answer(ShardPeer& peer, uint32_t bucket) {
  const ElementRange where = bucket_range(bucket);
  if (!peer.parameters_sent[bucket]) {
    transport::LocalSlice from = checked_copy(peer, bucket);
    if (from.region == nullptr) {
      from = {.region = uses_gpu(peer) ? gpu_regions_[peer.context_index].parameters.get()
                                       : parameters_regions_[peer.context_index].get(),
              .offset = (where.first - range().first) * sizeof(float),
              .bytes = where.count * sizeof(float)};
    }
    const absl::Status posted =
        peer.connection->put(from, {.region = peer.parameters_remote, .offset = where.first * sizeof(float)}, {});
    if (absl::IsResourceExhausted(posted)) return false;
    peer.parameters_sent[bucket] = true;  // any other failure: peer_lost is on its way
  }
  const absl::Status posted = peer.connection->put(
      {.region = peer.returns.region.get(), .offset = bucket * sizeof(ReturnHeader), .bytes = sizeof(ReturnHeader)},
      {.region = peer.returns_remote, .offset = bucket * sizeof(ReturnHeader)}, {.immediate = bucket});
  return !absl::IsResourceExhausted(posted);
}

void Shard::send_backlog(ShardPeer& peer) {
  while (!peer.backlog.empty() && send_answer(peer, peer.backlog.front())) peer.backlog.pop_front();
  if (peer.backlog.empty()) --unsettled_;
}

}  // namespace gradrail::ps
