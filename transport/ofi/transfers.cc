#include "transport/ofi/transfers.h"

#include "base/check.h"
#include "base/status.h"
#include "transport/common/slice.h"

namespace gradrail::transport::ofi {
namespace {

/// Two step's worth of 1 MiB buckets for a 500 MB shard, as with tcp; an entry is 100 B.
constexpr size_t kMaxPuts = 1024;
constexpr size_t kMaxGets = 256;
/// RDMA devices take 16 reads of one connection at a time, more would only wait in the device.
constexpr size_t kGetPieces = 16;

absl::StatusOr<Transfer> local_part(const Link& link, const LocalSlice& slice) {
  GRADRAIL_CHECK(slice.region != nullptr && slice.bytes > 0);
  const auto* region = static_cast<const Region*>(slice.region);
  GRADRAIL_ASSIGN_OR_RETURN(void* const descriptor, region->descriptor_in(link.domain()));
  return Transfer{.local = common::address_of(slice), .descriptor = descriptor, .bytes = slice.bytes};
}

}  // namespace

Transfers::Transfers(const Provider& provider)
    : provider_(provider),
      // One write at a time keeps the order of the puts if the provider has no order.
      puts_(Operation::Kind::put, kMaxPuts, provider.ordered ? provider.pieces_in_flight : 1, provider.piece_bytes,
            provider.confirms_writes),
      gets_(Operation::Kind::get, kMaxGets, kGetPieces, provider.piece_bytes) {}

void Transfers::set_mailbox(uint64_t key, uint64_t base) {
  mailbox_key_ = key;
  mailbox_base_ = base;
}

absl::Status Transfers::check_room(const TransferQueue& queue) {
  constexpr size_t kMost = 2;  // a put and its notice
  if (queue.room() < kMost) return absl::ResourceExhaustedError("ofi: queue full, poll first");
  return absl::OkStatus();
}

absl::Status Transfers::put(Link& link, const LocalSlice& source, const Import* target, uint64_t offset,
                            const PutOptions& options) {
  if (source.bytes == 0) {
    GRADRAIL_CHECK(options.immediate.has_value());  // a put of no bytes without a notice is done immediately
    puts_.push(notice(link, *options.immediate, options.tag));
    return absl::OkStatus();
  }
  GRADRAIL_ASSIGN_OR_RETURN(Transfer transfer, local_part(link, source));
  GRADRAIL_CHECK(target != nullptr && target->granted);  // the grant contains the device key
  transfer.remote = target->base + offset;
  transfer.key = target->device_key;
  // The tag stays with the bytes, also beside a separate notice: put_done frees their source.
  transfer.tag = options.tag;
  const bool separate = options.immediate && provider_.separate_notices;
  if (!separate) transfer.immediate = options.immediate;
  puts_.push(transfer);
  if (separate) puts_.push(notice(link, *options.immediate, 0));
  return absl::OkStatus();
}

Transfer Transfers::notice(Link& link, uint64_t immediate, uint64_t tag) const {
  // Some providers require a valid key even for a write of 0 bytes. The key of the mailbox satisfies all of them.
  return {.local = link.mailbox(),
          .descriptor = link.mailbox_memory().descriptor,
          .remote = mailbox_base_,
          .key = mailbox_key_,
          .immediate = immediate,
          .tag = tag};
}

absl::Status Transfers::get(const Link& link, const LocalSlice& target, const Import& source, uint64_t offset,
                            uint64_t tag) {
  GRADRAIL_ASSIGN_OR_RETURN(Transfer transfer, local_part(link, target));
  GRADRAIL_CHECK(source.granted);
  transfer.remote = source.base + offset;
  transfer.key = source.device_key;
  transfer.tag = tag;
  gets_.push(transfer);
  return absl::OkStatus();
}

absl::Status Transfers::pump(const Endpoint& endpoint) {
  GRADRAIL_RETURN_IF_ERROR(puts_.pump(endpoint));
  return gets_.pump(endpoint);
}

}  // namespace gradrail::transport::ofi
