#include "ps/replication/backup_sender.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/status.h"
#include "fmt/format.h"
#include "ps/protocol/control.pb.h"
#include "ps/protocol/data_message.h"
#include "ps/protocol/mac.h"

namespace gradrail::ps {
namespace {

/// Acknowledgements are empty puts; the transport needs a region as their target.
constexpr size_t kNoticeBytes = 64;

}  // namespace

absl::StatusOr<std::unique_ptr<BackupSender>> BackupSender::open(transport::Context& context, ParameterStore& store,
                                                                 RegistrationBudget& budget, Options options) {
  std::unique_ptr<BackupSender> sender(new BackupSender(context, store, std::move(options)));
  const BackupLayout& layout = sender->options_.layout;
  GRADRAIL_ASSIGN_OR_RETURN(transport::RegisteredMemory slots,
                            transport::make_registered(budget, context, "gradrail-backup-out",
                                                       std::max<size_t>(layout.bytes(), 1), transport::Access::local));
  GRADRAIL_ASSIGN_OR_RETURN(transport::RegisteredMemory notices,
                            transport::make_registered(budget, context, "gradrail-backup-notices", kNoticeBytes,
                                                       transport::Access::remote_write));
  sender->slots_ = std::move(slots);
  sender->notices_ = std::move(notices);
  // Last the connection: its events can refer to all of the rest.
  GRADRAIL_ASSIGN_OR_RETURN(transport::Connection* const connection,
                            context.connect(sender->options_.address, sender->options_.deadline));
  sender->connection_ = connection;
  return sender;
}

/// Begins the handshake. The backup sends the first message, as a shard does to each peer: the proof answers its
/// challenge.
void BackupSender::start_handshake(const std::string& challenge) {
  proto::ToShard message;
  proto::JoinReplication& join = *message.mutable_join_replication();
  join.set_proof(mac_of(options_.key, {challenge}));
  join.set_shard_index(options_.shard_index);
  join.set_capacity(options_.layout.capacity());
  join.set_notices_key(notices_.region->key());
  // advance() sends it, because the transport may have no room at this moment.
  unsent_ = message.SerializeAsString();
}

BackupSender::~BackupSender() {
  if (connection_ != nullptr) context_.close(connection_);
}

void BackupSender::fail(std::string_view why) {
  // The first cause counts; later errors are its consequences.
  if (phase() == Phase::lost) return;
  progress_.fail();
  why_ = why;
}

void BackupSender::on_message(absl::Span<const std::byte> bytes) {
  proto::ToWorker message;
  if (!message.ParseFromArray(bytes.data(), static_cast<int>(bytes.size()))) return fail("it sent an unknown message");
  if (message.has_challenge() && phase() == Phase::handshake) return start_handshake(message.challenge());
  if (message.has_replication_welcome() && phase() == Phase::handshake) {
    return accept_welcome(message.replication_welcome().slots_key());
  }
  fail(message.has_refused() ? message.refused() : "it sent a message out of turn");
}

void BackupSender::accept_welcome(const std::string& slots_key) {
  const absl::StatusOr<transport::RemoteRegion> slots = connection_->import(slots_key);
  if (!slots.ok()) return fail(fmt::format("its region key: {}", message_of(slots.status())));
  remote_ = *slots;
  progress_.begin_to_fill();
}

absl::Status BackupSender::fill_slot(uint32_t bucket) {
  std::byte* slot = slots_.memory.data() + options_.layout.slot_offset(bucket);
  const size_t count = options_.layout.elements(bucket);
  GRADRAIL_ASSIGN_OR_RETURN(const float* const parameters,
                            store_.fresh_parameters(options_.layout.first(bucket), count));
  std::memcpy(options_.layout.values(slot, bucket, -1), parameters, count * sizeof(float));
  for (int i = 0; i < options_.layout.state_vectors(); ++i) {
    GRADRAIL_RETURN_IF_ERROR(
        store_.copy_state(i, options_.layout.first(bucket), {options_.layout.values(slot, bucket, i), count}));
  }
  options_.export_bucket(bucket, state_);
  return options_.layout.seal(slot, bucket, state_);
}

bool BackupSender::put_slot(uint32_t bucket) {
  const size_t offset = options_.layout.slot_offset(bucket);
  const absl::Status posted =
      connection_->put({.region = slots_.region.get(), .offset = offset, .bytes = options_.layout.slot_bytes(bucket)},
                       {.region = remote_, .offset = offset}, {.immediate = bucket});
  return !absl::IsResourceExhausted(posted);  // any other failure: peer_lost is on its way
}

bool BackupSender::advance() {
  if (phase() == Phase::lost) return false;
  if (!unsent_.empty()) {
    const absl::Status sent = connection_->send({reinterpret_cast<const std::byte*>(unsent_.data()), unsent_.size()});
    if (absl::IsResourceExhausted(sent)) return true;
    if (!sent.ok()) fail(message_of(sent));
    unsent_.clear();
  }
  while (progress_.has_next() && phase() != Phase::lost) {
    const uint32_t bucket = progress_.next();
    if (!progress_.is_filled()) {
      // The slot is filled as late as possible: one transfer then carries all updates until now.
      if (const absl::Status filled = fill_slot(bucket); !filled.ok()) {
        // The slot is not sealed: its header is not that of its values.
        fail(message_of(filled));
        return false;
      }
      progress_.on_filled();
    }
    if (!put_slot(bucket)) return true;
    progress_.on_put();
  }
  if (!progress_.is_level_unannounced() || phase() == Phase::lost) return false;
  proto::ToShard message;
  message.mutable_backup_in_sync();
  if (absl::IsResourceExhausted(send_message(*connection_, message))) return true;
  progress_.on_announced();
  return false;
}

std::optional<uint32_t> BackupSender::on_acknowledged(uint64_t immediate) {
  if (progress_.on_acknowledged(immediate)) return static_cast<uint32_t>(immediate);
  fail("it acknowledged a bucket that was not sent");
  return std::nullopt;
}

}  // namespace gradrail::ps
