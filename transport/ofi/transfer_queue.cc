#include "transport/ofi/transfer_queue.h"

#include <rdma/fi_errno.h>
#include <rdma/fi_rma.h>

#include <algorithm>

#include "base/check.h"
#include "transport/ofi/native_error.h"

namespace gradrail::transport::ofi {

TransferQueue::TransferQueue(Operation::Kind kind, size_t capacity, size_t pieces, size_t piece_bytes, bool confirmed)
    : kind_(kind), piece_bytes_(piece_bytes), confirmed_(confirmed), entries_(capacity), operations_(pieces) {
  // at() masks the number of an entry.
  GRADRAIL_CHECK((capacity & (capacity - 1)) == 0);
  for (Operation& operation : operations_) {
    operation.kind = kind;
    free_.push_back(&operation);
  }
}

void TransferQueue::push(const Transfer& transfer) {
  GRADRAIL_CHECK(room() > 0);
  at(end_++) = {.transfer = transfer};
}

ssize_t TransferQueue::post_piece(const Endpoint& endpoint, Entry& entry, Operation& operation, uint64_t bytes) {
  Transfer piece = entry.transfer;
  const bool last = entry.posted_bytes + bytes == piece.bytes;
  piece.local += entry.posted_bytes;
  piece.remote += entry.posted_bytes;
  piece.bytes = bytes;
  // Pieces land in the order of their posts, so the notice of the last one implies the others.
  if (!last) piece.immediate.reset();
  if (kind_ == Operation::Kind::get) {
    return fi_read(endpoint.fid(), piece.local, bytes, piece.descriptor, endpoint.peer(), piece.remote, piece.key,
                   &operation.context);
  }
  if (confirmed_) return post_confirmed(endpoint, piece, operation);
  if (piece.immediate) {
    return fi_writedata(endpoint.fid(), piece.local, bytes, piece.descriptor, *piece.immediate, endpoint.peer(),
                        piece.remote, piece.key, &operation.context);
  }
  return fi_write(endpoint.fid(), piece.local, bytes, piece.descriptor, endpoint.peer(), piece.remote, piece.key,
                  &operation.context);
}

ssize_t TransferQueue::post_confirmed(const Endpoint& endpoint, const Transfer& piece, Operation& operation) const {
  const iovec local = {piece.local, piece.bytes};
  const fi_rma_iov remote = {piece.remote, piece.bytes, piece.key};
  void* descriptor = piece.descriptor;
  const fi_msg_rma message = {.msg_iov = &local,
                              .desc = &descriptor,
                              .iov_count = 1,
                              .addr = endpoint.peer(),
                              .rma_iov = &remote,
                              .rma_iov_count = 1,
                              .context = &operation.context,
                              .data = piece.immediate.value_or(0)};
  // fi_write() and fi_writedata() take no flags, so only fi_writemsg() can request the confirmation of the peer's side.
  const uint64_t flags = FI_COMPLETION | FI_DELIVERY_COMPLETE | (piece.immediate ? FI_REMOTE_CQ_DATA : 0);
  return fi_writemsg(endpoint.fid(), &message, flags);
}

absl::Status TransferQueue::pump(const Endpoint& endpoint) {
  while (next_ < end_ && !free_.empty()) {
    Entry& entry = at(next_);
    GRADRAIL_CHECK(!entry.posted && entry.posted_bytes <= entry.transfer.bytes);  // invariant 1
    Operation& operation = *free_.back();
    operation.slot = static_cast<uint32_t>(next_ & (entries_.size() - 1));
    const uint64_t bytes = std::min<uint64_t>(piece_bytes_, entry.transfer.bytes - entry.posted_bytes);
    const ssize_t result = post_piece(endpoint, entry, operation, bytes);
    // The provider's queue is full: progress() pumps again after it has read completions.
    if (result == -FI_EAGAIN) return absl::OkStatus();
    if (result != 0) {
      return native_error(kind_ == Operation::Kind::put ? "post put" : "post get", static_cast<int>(-result));
    }
    free_.pop_back();
    ++entry.pieces_under_way;
    entry.posted_bytes += bytes;
    entry.posted = entry.posted_bytes == entry.transfer.bytes;
    if (entry.posted) ++next_;
  }
  return absl::OkStatus();
}

uint64_t TransferQueue::bytes_under_way() {
  uint64_t bytes = 0;
  // A beginning of next_ may be posted as well (invariant 1).
  for (uint64_t number = done_; number < end_ && number <= next_; ++number) bytes += at(number).transfer.bytes;
  return bytes;
}

std::optional<uint64_t> TransferQueue::finished(const Operation& operation) {
  GRADRAIL_CHECK(operation.kind == kind_ && operation.slot < entries_.size() && free_.size() < operations_.size());
  Entry& entry = entries_[operation.slot];
  GRADRAIL_CHECK(entry.pieces_under_way > 0);  // invariant 2: the piece was posted
  free_.push_back(const_cast<Operation*>(&operation));
  --entry.pieces_under_way;
  ++finished_count_;
  if (!entry.posted || entry.pieces_under_way > 0) return std::nullopt;
  const uint64_t tag = entry.transfer.tag;
  // Pieces of several transfers may finish in any order: the queue shrinks from its front.
  while (done_ < next_ && at(done_).posted && at(done_).pieces_under_way == 0) ++done_;
  GRADRAIL_CHECK(done_ <= next_ && next_ <= end_);  // invariant 1
  return tag;
}

}  // namespace gradrail::transport::ofi
