#include <algorithm>
#include <cassert>
#include <cstring>
#include <utility>

#include "absl/container/inlined_vector.h"
#include "base/check.h"
#include "base/status.h"
#include "transport/common/slice.h"
#include "transport/prepared_puts.h"
#include "transport/shm/connection.h"

namespace gradrail::transport::shm {
namespace {

/// Completions of puts and gets that may wait for the next poll.
constexpr size_t kMaxLocalCompletions = kRingEntries;

class ShmPreparedPuts final : public PreparedPuts {
 public:
  using Copies = absl::InlinedVector<ShmConnection::Copy, 2>;
  ShmPreparedPuts(ShmConnection& connection, Copies copies, uint64_t immediate)
      : connection_(connection), copies_(std::move(copies)), immediate_(immediate) {}

  absl::Status post(size_t& posted) override {
    assert(posted == 0);  // the group is posted as a whole, or not at all
    absl::Status status = connection_.post(copies_, immediate_);
    if (status.ok()) posted = copies_.size();
    return status;
  }

 private:
  ShmConnection& connection_;
  const Copies copies_;
  const uint64_t immediate_;
};

void copy(const ShmConnection::Copy& put) {
  // Written through map() already: the notice is all that is missing.
  if (put.bytes == 0 || put.to == put.from) return;
  // memmove, because the source may be a peer's region that map() put into this process, and overlap the target.
  std::memmove(put.to, put.from, put.bytes);
}

}  // namespace

absl::StatusOr<std::byte*> ShmConnection::locate(RemoteSlice slice, size_t bytes, Access wanted) {
  const auto index = static_cast<size_t>(slice.region);
  if (index >= imported_.size()) return absl::InvalidArgumentError("shm: not an imported region");
  const ImportedRegion& region = imported_[index];
  GRADRAIL_RETURN_IF_ERROR(common::check_remote("shm", slice, bytes, region.key.bytes));
  // Permanent errors precede the temporary one: a caller must not repeat a post that never succeeds.
  if (!allows(region.access(), wanted)) return absl::PermissionDeniedError("shm: the region's key does not allow this");
  if (region.data() == nullptr) {
    return absl::ResourceExhaustedError("shm: region is being mapped: poll and try again");
  }
  GRADRAIL_CHECK(region.mapping.bytes() >= region.key.bytes);  // handle_region() maps all of the key's bytes
  return region.data() + slice.offset;
}

absl::Status ShmConnection::check_room(size_t entries) {
  switch (producer_.room_for(entries)) {
    case RingProducer::Room::available:
      return absl::OkStatus();
    case RingProducer::Room::full:
      return absl::ResourceExhaustedError("shm: ring is full: poll and try again");
    case RingProducer::Room::broken:
      break;
  }
  refuse(absl::DataLossError("shm: peer broke the ring (consumed what was not published)"), Drain::no);
  return lost_error();
}

absl::Status ShmConnection::check_local_room(uint64_t tag) const {
  if (tag != 0 && local_.size() >= kMaxLocalCompletions) [[unlikely]] {
    return absl::ResourceExhaustedError("shm: too many completions not polled");
  }
  return absl::OkStatus();
}

absl::StatusOr<ShmConnection::Copy> ShmConnection::copy_of(const LocalSlice& source, const RemoteSlice& target) {
  GRADRAIL_RETURN_IF_ERROR(common::check_local("shm", source));
  if (source.bytes == 0) return Copy{};
  GRADRAIL_ASSIGN_OR_RETURN(std::byte* const to, locate(target, source.bytes, Access::remote_write));
  return Copy{to, common::address_of(source), source.bytes};
}

absl::Status ShmConnection::put(LocalSlice source, RemoteSlice target, PutOptions options) {
  if (!cause_.ok()) [[unlikely]] {
    return lost_error();
  }
  // Everything is checked before a byte is written: a refused put has no effect.
  GRADRAIL_ASSIGN_OR_RETURN(const Copy checked, copy_of(source, target));
  GRADRAIL_RETURN_IF_ERROR(check_local_room(options.tag));
  if (options.immediate) GRADRAIL_RETURN_IF_ERROR(check_room(1));
  copy(checked);
  if (options.immediate) {
    producer_.publish_immediate(*options.immediate);
    wake_peer();
  }
  // The bytes have landed, but only poll() reports completions.
  if (options.tag != 0) local_.push_back({.kind = Completion::Kind::put_done, .tag = options.tag});
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<PreparedPuts>> ShmConnection::prepare(absl::Span<const Transfer> puts,
                                                                     uint64_t immediate) {
  ShmPreparedPuts::Copies copies;
  for (const Transfer& put : puts) {
    GRADRAIL_ASSIGN_OR_RETURN(const Copy checked, copy_of(put.source, put.target));
    copies.push_back(checked);
  }
  return std::make_unique<ShmPreparedPuts>(*this, std::move(copies), immediate);
}

absl::Status ShmConnection::post(absl::Span<const Copy> copies, uint64_t immediate) {
  if (!cause_.ok()) [[unlikely]] {
    return lost_error();
  }
  GRADRAIL_RETURN_IF_ERROR(check_room(1));
  for (const Copy& each : copies) copy(each);
  producer_.publish_immediate(immediate);
  wake_peer();
  return absl::OkStatus();
}

absl::Status ShmConnection::get(LocalSlice target, RemoteSlice source, uint64_t tag) {
  if (!cause_.ok()) return lost_error();
  GRADRAIL_RETURN_IF_ERROR(common::check_local("shm", target));
  GRADRAIL_RETURN_IF_ERROR(check_local_room(1));  // a get always completes, whatever its tag
  GRADRAIL_ASSIGN_OR_RETURN(std::byte * located, locate(source, target.bytes, Access::remote_read));
  if (target.bytes > 0) std::memmove(common::address_of(target), located, target.bytes);
  local_.push_back({.kind = Completion::Kind::get_done, .tag = tag});
  return absl::OkStatus();
}

absl::Status ShmConnection::send(absl::Span<const std::byte> message) {
  if (!cause_.ok()) return lost_error();
  if (message.size() > kMaxMessageBytes) return absl::InvalidArgumentError("shm: message too long");
  GRADRAIL_RETURN_IF_ERROR(check_room(entries_for(message.size())));
  producer_.publish_message(message);
  wake_peer();
  return absl::OkStatus();
}

absl::StatusOr<std::byte*> ShmConnection::map(RemoteRegion region) {
  if (!cause_.ok()) return lost_error();
  const auto index = static_cast<size_t>(region);
  if (index < imported_.size() && imported_[index].access() == Access::local) {
    return absl::PermissionDeniedError("shm: the peer does not share this region");  // never requested, never mapped
  }
  // Access::local passes every check of rights: the page protection of the mapping enforces the rights of the key.
  return locate({.region = region, .offset = 0}, 0, Access::local);
}

void ShmConnection::wake_peer() {
  if (!producer_.consumer_sleeps()) [[likely]] {
    return;
  }
  // A peer that sleeps has sent its bell before; it may only not have been read yet. (Its reading calls this function
  // again.)
  if (!peer_bell_) return service_channel();
  ring_bell(peer_bell_.get());
}

bool ShmConnection::has_work() const {
  if (!local_.empty()) return true;
  if (lost_reported_) return false;
  // arm() has announced the sleep before. This load finds each entry for which the producer does not ring the bell.
  return !cause_.ok() || !consumer_.empty_after_announcing();
}

size_t ShmConnection::poll_ring(absl::Span<Completion> out, MessageArena& arena) {
  size_t count = 0;
  // A message needs its place before it is taken; without one it stays in the ring until the next poll.
  while (count < out.size() && arena.has_room()) {
    const RingConsumer::Taken taken = consumer_.take(arena.room());
    switch (taken.kind) {
      case RingConsumer::Taken::Kind::nothing:
        return count;
      case RingConsumer::Taken::Kind::immediate:
        out[count++] = {.kind = Completion::Kind::put_arrived, .connection = this, .immediate = taken.immediate};
        break;
      case RingConsumer::Taken::Kind::message:
        out[count++] = {
            .kind = Completion::Kind::message, .connection = this, .message = arena.keep(taken.message_bytes)};
        break;
      case RingConsumer::Taken::Kind::broken:
        refuse(absl::DataLossError("shm: peer wrote a ring entry that cannot be"), Drain::no);
        drain_ = false;  // also if the peer was lost already
        return count;
    }
  }
  return count;
}

size_t ShmConnection::poll(absl::Span<Completion> out, MessageArena& arena) {
  GRADRAIL_CHECK(!lost_reported_ || local_.empty());  // invariant 2
  size_t count = 0;
  for (; count < out.size() && !local_.empty(); ++count) {
    out[count] = std::move(local_.front());
    out[count].connection = this;
    local_.pop_front();
  }
  if (drain_) count += poll_ring(out.subspan(count), arena);
  if (cause_.ok() || lost_reported_) [[likely]] {
    return count;
  }
  // Entries that found no room in this poll precede peer_lost (invariant 2).
  if (count == out.size() || (drain_ && !consumer_.empty())) return count;
  out[count++] = {.kind = Completion::Kind::peer_lost, .connection = this, .cause = cause_};
  lost_reported_ = true;
  drain_ = false;
  return count;
}

}  // namespace gradrail::transport::shm
