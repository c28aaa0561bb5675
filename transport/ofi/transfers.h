#pragma once

#include <cstdint>
#include <optional>

#include "absl/status/status.h"
#include "base/clock.h"
#include "transport/connection.h"
#include "transport/ofi/imports.h"
#include "transport/ofi/link.h"
#include "transport/ofi/provider.h"
#include "transport/ofi/transfer_queue.h"

namespace gradrail::transport::ofi {

/// The puts and gets of one connection. It also detects a device that finishes none of them any more.
class Transfers {
 public:
  explicit Transfers(const Provider& provider);

  /// Where notices without bytes go: a place in the peer's memory.
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
  /// One piece is finished. The tag of the transfer after its last piece.
  std::optional<uint64_t> put_finished(const Operation& operation) { return puts_.finished(operation); }
  std::optional<uint64_t> get_finished(const Operation& operation) { return gets_.finished(operation); }

  bool stuck() const { return puts_.stuck() || gets_.stuck(); }
  bool under_way() const { return puts_.under_way() || gets_.under_way(); }
  /// How long the device has finished nothing, once that is too long. Called now and then.
  std::optional<Duration> silence(TimePoint now, bool waits_for_device);

 private:
  static absl::Status check_room(const TransferQueue& queue);
  Transfer notice(Link& link, uint64_t immediate, uint64_t tag) const;

  const Provider& provider_;
  TransferQueue puts_;
  TransferQueue gets_;
  uint64_t mailbox_key_ = 0;
  uint64_t mailbox_base_ = 0;
  uint64_t finished_before_ = 0;  ///< at the last call of silence()
  TimePoint silent_since_{};
};

}  // namespace gradrail::transport::ofi
