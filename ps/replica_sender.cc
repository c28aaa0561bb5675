#include "ps/replica_sender.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/status.h"
#include "fmt/format.h"
#include "ps/call_proof.h"
#include "ps/control.pb.h"
#include "ps/data_message.h"

namespace gradrail::ps {
namespace {

/// Notices carry nothing; a region is what they go to.
constexpr size_t kNoticeBytes = 64;

}  // namespace

absl::StatusOr<std::unique_ptr<ReplicaSender>> ReplicaSender::open(transport::Context& context,
                                                                   const std::string& address, const std::string& key,
                                                                   uint32_t shard_index, ReplicaLayout layout,
                                                                   ShardProtocol& protocol, ParameterStore& store,
                                                                   transport::RegistrationBudget& budget,
                                                                   TimePoint deadline) {
  std::unique_ptr<ReplicaSender> sender(new ReplicaSender(context, std::move(layout), protocol, store));
  absl::StatusOr<transport::RegisteredMemory> slots = transport::make_registered(
      budget, context, "gradrail-replica-out", std::max<size_t>(sender->layout_.bytes(), 1), transport::Access::local);
  if (!slots.ok()) return slots.status();
  absl::StatusOr<transport::RegisteredMemory> notices = transport::make_registered(
      budget, context, "gradrail-replica-notices", kNoticeBytes, transport::Access::remote_write);
  if (!notices.ok()) return notices.status();
  sender->slots_ = *std::move(slots);
  sender->notices_ = *std::move(notices);
  sender->buckets_.resize(sender->layout_.bucket_count());
  const absl::StatusOr<transport::Connection*> connection = context.connect(address, deadline);
  if (!connection.ok()) return connection.status();
  sender->connection_ = *connection;
  sender->key_ = key;
  sender->shard_index_ = shard_index;
  return sender;
}

/// The standby speaks first, as shards do to everybody.
void ReplicaSender::greet(const std::string& challenge) {
  proto::ToShard message;
  proto::ReplicaHello& hello = *message.mutable_replica_hello();
  hello.set_proof(mac_of(key_, {challenge}));
  hello.set_shard_index(shard_index_);
  hello.set_capacity(layout_.capacity());
  hello.set_notices_key(notices_.region->key());
  hello_ = std::move(message);
}

ReplicaSender::~ReplicaSender() {
  if (connection_ != nullptr) context_.close(connection_);
}

void ReplicaSender::fail(std::string_view why) {
  if (phase_ == Phase::lost) return;
  phase_ = Phase::lost;
  why_ = why;
}

void ReplicaSender::changed(uint32_t bucket_index) {
  Bucket& bucket = buckets_[bucket_index];
  ++bucket.changes;
  if (bucket.queued || bucket.in_flight || phase_ == Phase::greeting) return;
  bucket.queued = true;
  dirty_.push_back(bucket_index);
}

void ReplicaSender::on_message(absl::Span<const std::byte> bytes) {
  proto::ToWorker message;
  if (!message.ParseFromArray(bytes.data(), static_cast<int>(bytes.size()))) return fail("it said no message of ours");
  if (message.has_challenge() && phase_ == Phase::greeting) return greet(message.challenge());
  if (message.has_replica_welcome() && phase_ == Phase::greeting) {
    return take_welcome(message.replica_welcome().slots_key());
  }
  fail(message.has_refused() ? message.refused() : "it sent a message out of turn");
}

void ReplicaSender::take_welcome(const std::string& slots_key) {
  const absl::StatusOr<transport::RemoteRegion> slots = connection_->import(slots_key);
  if (!slots.ok()) return fail(fmt::format("its region key: {}", message_of(slots.status())));
  remote_ = *slots;
  phase_ = Phase::filling;
  missing_ = buckets_.size();
  for (uint32_t i = 0; i < buckets_.size(); ++i) changed(i);
  if (missing_ == 0) begin_to_hold();
}

absl::Status ReplicaSender::fill(uint32_t bucket) {
  std::byte* slot = slots_.memory.data() + layout_.slot_offset(bucket);
  const size_t count = layout_.elements(bucket);
  std::memcpy(layout_.values(slot, bucket, -1), store_.parameters_at(layout_.first(bucket)), count * sizeof(float));
  for (int i = 0; i < layout_.state_vectors(); ++i) {
    GRADRAIL_RETURN_IF_ERROR(store_.copy_state(i, layout_.first(bucket), {layout_.values(slot, bucket, i), count}));
  }
  protocol_.export_bucket(bucket, state_);
  return layout_.seal(slot, bucket, state_);
}

bool ReplicaSender::put(uint32_t bucket) {
  const size_t offset = layout_.slot_offset(bucket);
  const absl::Status posted =
      connection_->put({.region = slots_.region.get(), .offset = offset, .bytes = layout_.slot_bytes(bucket)},
                       {.region = remote_, .offset = offset}, {.immediate = bucket});
  return !absl::IsResourceExhausted(posted);  // any other failure: peer_lost is on its way
}

bool ReplicaSender::advance() {
  if (phase_ == Phase::lost) return false;
  if (hello_.has_value()) {
    const absl::Status sent = send_message(*connection_, *hello_);
    if (absl::IsResourceExhausted(sent)) return true;
    if (!sent.ok()) fail(message_of(sent));
    hello_.reset();
  }
  while (!dirty_.empty() && phase_ != Phase::lost) {
    const uint32_t index = dirty_.front();
    Bucket& bucket = buckets_[index];
    if (!filled_first_) {
      if (const absl::Status filled = fill(index); !filled.ok()) fail(message_of(filled));
      bucket.sent = bucket.changes;
      filled_first_ = true;
    }
    if (!put(index)) return true;
    filled_first_ = bucket.queued = false;
    bucket.in_flight = true;
    dirty_.pop_front();
  }
  if (!says_level_ || phase_ == Phase::lost) return false;
  proto::ToShard message;
  message.mutable_replica_level();
  if (absl::IsResourceExhausted(send_message(*connection_, message))) return true;
  says_level_ = false;
  return false;
}

std::optional<uint32_t> ReplicaSender::on_notice(uint64_t immediate) {
  if (immediate >= buckets_.size() || !buckets_[immediate].in_flight) {
    fail("it answered what was not asked");
    return std::nullopt;
  }
  const auto index = static_cast<uint32_t>(immediate);
  Bucket& bucket = buckets_[index];
  const bool first = bucket.acknowledged == 0;
  const bool was_short = bucket.acknowledged < bucket.level_at;
  bucket.in_flight = false;
  bucket.acknowledged = bucket.sent;
  if (bucket.changes > bucket.sent) {
    bucket.queued = true;
    dirty_.push_back(index);
  }
  if (phase_ == Phase::filling && first && --missing_ == 0) {
    begin_to_hold();
  } else if (phase_ == Phase::leveling && was_short && bucket.acknowledged >= bucket.level_at) {
    --missing_;
    settle_level();
  }
  return index;
}

void ReplicaSender::begin_to_hold() {
  phase_ = Phase::leveling;
  for (Bucket& bucket : buckets_) {
    bucket.level_at = bucket.changes;
    if (bucket.acknowledged < bucket.level_at) ++missing_;
  }
  settle_level();
}

void ReplicaSender::settle_level() {
  if (missing_ > 0) return;
  phase_ = Phase::level;
  says_level_ = true;
}

}  // namespace gradrail::ps
