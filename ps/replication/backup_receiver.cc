#include "ps/replication/backup_receiver.h"

#include <algorithm>
#include <utility>

#include "base/status.h"
#include "fmt/format.h"

namespace gradrail::ps {

absl::StatusOr<std::unique_ptr<BackupReceiver>> BackupReceiver::open(transport::Context& context,
                                                                     transport::Connection& connection,
                                                                     const std::string& notices_key,
                                                                     BackupLayout layout, RegistrationBudget& budget,
                                                                     const MemoryBinder& place) {
  std::unique_ptr<BackupReceiver> receiver(new BackupReceiver(connection, std::move(layout)));
  GRADRAIL_ASSIGN_OR_RETURN(receiver->notices_, connection.import(notices_key));
  // A shard without buckets has no slots, and no transport registers 0 bytes.
  GRADRAIL_ASSIGN_OR_RETURN(
      transport::RegisteredMemory slots,
      transport::make_registered(budget, context, "gradrail-backup", std::max<size_t>(receiver->layout_.bytes(), 1),
                                 transport::Access::remote_write, place));
  receiver->slots_ = std::move(slots);
  return receiver;
}

absl::StatusOr<BucketState> BackupReceiver::receive(uint64_t immediate, ParameterStore& store) {
  if (immediate >= layout_.bucket_count()) {
    return absl::InvalidArgumentError(fmt::format("no bucket {} in this shard", immediate));
  }
  // Another process sends the immediate; from here on the bucket is valid.
  const auto bucket = static_cast<uint32_t>(immediate);
  std::byte* slot = slots_.memory.data() + layout_.slot_offset(bucket);
  GRADRAIL_ASSIGN_OR_RETURN(BucketState state, layout_.open(slot, bucket));
  // The checksum was right: nothing of a damaged slot reaches the store.
  const size_t first = layout_.first(bucket), count = layout_.elements(bucket);
  GRADRAIL_RETURN_IF_ERROR(store.set(first, {layout_.values(slot, bucket, -1), count}));
  for (int i = 0; i < layout_.state_vectors(); ++i) {
    GRADRAIL_RETURN_IF_ERROR(store.set_state(i, first, {layout_.values(slot, bucket, i), count}));
  }
  return state;
}

bool BackupReceiver::acknowledge(uint32_t bucket) {
  // Only the notice matters: its immediate names the bucket.
  const absl::Status posted = connection_.put({.region = slots_.region.get(), .offset = 0, .bytes = 0},
                                              {.region = notices_, .offset = 0}, {.immediate = bucket});
  return !absl::IsResourceExhausted(posted);  // any other failure: peer_lost is on its way
}

}  // namespace gradrail::ps
