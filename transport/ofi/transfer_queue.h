#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "transport/ofi/endpoint.h"

namespace gradrail::transport::ofi {

/// A put or get. Pieces of it are posted as the provider takes them; the immediate leaves with the last.
struct Transfer {
  std::byte* local = nullptr;
  void* descriptor = nullptr;
  uint64_t remote = 0;  ///< address in the counting of the provider
  uint64_t key = 0;
  uint64_t bytes = 0;
  std::optional<uint64_t> immediate;
  uint64_t tag = 0;
};

/// The puts, or the gets, of one connection: posted in order, at most `pieces` at a time. Nothing is allocated after
/// construction.
/// Invariants  1. done_ <= next_ <= end_: before done_ all is finished, from next_ on nothing is posted but a beginning
///                of next_ itself.
///             2. A piece is either in free_ or posted.
class TransferQueue {
 public:
  /// `confirmed`: puts count as finished when they are visible to the peer.
  TransferQueue(Operation::Kind kind, size_t capacity, size_t pieces, size_t piece_bytes, bool confirmed = false);

  size_t room() const { return entries_.size() - (end_ - done_); }
  /// Whether something waits to be posted, and no transfer is in flight that would wake it up.
  bool stuck() const { return next_ < end_ && free_.size() == operations_.size(); }

  /// Whether the provider has something of ours, and how much that is at most.
  bool under_way() const { return free_.size() < operations_.size(); }
  uint64_t bytes_under_way();
  /// Number of finished pieces.
  uint64_t finished_count() const { return finished_count_; }

  void push(const Transfer& transfer);  ///< not called without room
  /// Posts what the provider takes now.
  absl::Status pump(const Endpoint& endpoint);
  /// Records one finished piece. Returns the transfer's tag if that was its last.
  std::optional<uint64_t> finished(const Operation& operation);

 private:
  struct Entry {
    Transfer transfer;
    uint64_t posted_bytes = 0;
    uint32_t pieces_under_way = 0;
    bool posted = false;  ///< posted to the end
  };
  Entry& at(uint64_t number) { return entries_[number & (entries_.size() - 1)]; }
  ssize_t post_confirmed(const Endpoint& endpoint, const Transfer& piece, Operation& operation) const;
  ssize_t post_piece(const Endpoint& endpoint, Entry& entry, Operation& operation, uint64_t bytes);

  const Operation::Kind kind_;
  const size_t piece_bytes_;
  const bool confirmed_;
  std::vector<Entry> entries_;
  std::vector<Operation> operations_;  ///< slot: number of the entry, modulo their count
  std::vector<Operation*> free_;
  uint64_t finished_count_ = 0;
  uint64_t done_ = 0;
  uint64_t next_ = 0;
  uint64_t end_ = 0;
};

}  // namespace gradrail::transport::ofi
