#pragma once

#include <cstdint>
#include <optional>

#include "absl/status/status.h"
#include "transport/connection.h"
#include "transport/ofi/imports.h"
#include "transport/ofi/link.h"
#include "transport/ofi/provider.h"
#include "transport/ofi/transfer_queue.h"

namespace gradrail::transport::ofi {

/// The puts and gets of one connection.
class Transfers {
 public:
  explicit Transfers(const Provider& provider);

  /// Sets the place in the peer's memory for notices without bytes.
  void set_mailbox(uint64_t key, uint64_t base);

  /// Errors  RESOURCE_EXHAUSTED: the queue is full.
  absl::Status check_put_room() const { return check_room(puts_); }
  absl::Status check_get_room() const { return check_room(gets_); }
  /// Queues a put of some bytes, or of a notice alone. Needs room. Errors  As Region::descriptor_in.
  absl::Status put(Link& link, const LocalSlice& source, const Import* target, uint64_t offset,
                   const PutOptions& options);
  absl::Status get(const Link& link, const LocalSlice& target, const Import& source, uint64_t offset, uint64_t tag);

  /// Posts what the provider takes now.
  absl::Status pump(const Endpoint& endpoint);
  /// Records one finished piece. Returns the tag of the transfer after its last piece.
  std::optional<uint64_t> put_finished(const Operation& operation) { return puts_.finished(operation); }
  std::optional<uint64_t> get_finished(const Operation& operation) { return gets_.finished(operation); }

  bool stuck() const { return puts_.stuck() || gets_.stuck(); }
  bool under_way() const { return puts_.under_way() || gets_.under_way(); }
  /// Pieces that the device has finished, and bytes at most that it has not finished.
  uint64_t finished_count() const { return puts_.finished_count() + gets_.finished_count(); }
  uint64_t posted_bytes() { return puts_.bytes_under_way() + gets_.bytes_under_way(); }

 private:
  static absl::Status check_room(const TransferQueue& queue);
  Transfer notice(Link& link, uint64_t immediate, uint64_t tag) const;

  const Provider& provider_;
  TransferQueue puts_;
  TransferQueue gets_;
  uint64_t mailbox_key_ = 0;
  uint64_t mailbox_base_ = 0;
};

}  // namespace gradrail::transport::ofi
