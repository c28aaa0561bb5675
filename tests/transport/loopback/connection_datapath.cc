#include <cstring>

#include "base/check.h"
#include "base/status.h"
#include "fmt/format.h"
#include "tests/transport/loopback/connection.h"
#include "transport/common/slice.h"

namespace gradrail::transport::loopback {
namespace {

/// The begin of a local slice; null for a slice of no bytes.
absl::StatusOr<std::byte*> check_slice(const LocalSlice& slice) {
  if (slice.region != nullptr && dynamic_cast<const LoopbackRegion*>(slice.region) == nullptr) {
    return absl::InvalidArgumentError("loopback: a local slice of a region of another transport");
  }
  GRADRAIL_RETURN_IF_ERROR(common::check_local("loopback", slice));
  return common::address_of(slice);
}

absl::Status unknown_region(std::string_view operation) {
  return absl::InvalidArgumentError(fmt::format("loopback {}: the remote region was not imported here", operation));
}

}  // namespace

absl::Status LoopbackConnection::put(LocalSlice source, RemoteSlice target, PutOptions options) {
  GRADRAIL_ASSIGN_OR_RETURN(std::byte* const memory, check_slice(source));
  const std::string* const key = imported_.find(target.region);
  if (source.bytes > 0 && key == nullptr) return unknown_region("put");
  Operation operation{.memory = memory, .bytes = source.bytes, .offset = target.offset};
  if (source.bytes > 0) operation.key = *key;
  operation.immediate = options.immediate;
  operation.tag = options.tag;
  return post(Lane::put, std::move(operation));
}

absl::Status LoopbackConnection::get(LocalSlice target, RemoteSlice source, uint64_t tag) {
  GRADRAIL_ASSIGN_OR_RETURN(std::byte* const memory, check_slice(target));
  const std::string* const key = imported_.find(source.region);
  if (target.bytes > 0 && key == nullptr) return unknown_region("get");
  Operation operation{.memory = memory, .bytes = target.bytes, .offset = source.offset, .tag = tag};
  if (target.bytes > 0) operation.key = *key;
  return post(Lane::get, std::move(operation));
}

absl::Status LoopbackConnection::send(absl::Span<const std::byte> message) {
  if (message.size() > kMaxMessageBytes) {
    return absl::InvalidArgumentError(
        fmt::format("loopback send: message of {} bytes, limit {}", message.size(), kMaxMessageBytes));
  }
  return post(Lane::message, {.message = {message.begin(), message.end()}});
}

absl::Status LoopbackConnection::post(Lane lane, Operation operation) {
  {
    const MutexLock lock(link_->mutex);
    if (sees_loss()) return absl::UnavailableError(link_->lost.message());
    if (!link_->lost.ok()) return absl::OkStatus();  // the loss is on its way: the operation is lost with the link
    // Results count as well (Link, invariant 1): otherwise an owner that never polls would make them grow.
    size_t outstanding = ours().done.size();
    for (const auto& queue : ours().lanes) outstanding += queue.size();
    if (outstanding >= kQueueDepth) return absl::ResourceExhaustedError("loopback: queue full, poll and try again");
    if (link_->network != nullptr) operation.arrives = link_->network->arrival(us(), peer());
    ours().lanes[static_cast<size_t>(lane)].push_back(std::move(operation));
  }
  peer().doorbell->ring();
  return absl::OkStatus();
}

void LoopbackConnection::progress(Report& report) {
  bool tell_peer = false;
  {
    const MutexLock lock(link_->mutex);
    report_done(report);
    // Messages and gets may overtake puts (connection.h).
    for (const Lane lane : {Lane::message, Lane::get, Lane::put}) tell_peer |= run_lane(lane, report);
    if (!link_->lost.ok()) report_loss(report);
  }
  if (tell_peer) peer().doorbell->ring();
}

void LoopbackConnection::report_done(Report& report) {
  std::deque<Direction::Done>& done = ours().done;
  while (!done.empty() && !report.full()) {
    const auto kind = done.front().is_get ? Completion::Kind::get_done : Completion::Kind::put_done;
    report.add({.kind = kind, .connection = this, .tag = done.front().tag});
    done.pop_front();
  }
}

void LoopbackConnection::report_loss(Report& report) {
  // Last of all: a put_done behind it would name a connection the owner may have closed.
  if (loss_reported_ || report.full() || !ours().done.empty() || !sees_loss()) return;
  report.add({.kind = Completion::Kind::peer_lost, .connection = this, .cause = link_->lost});
  loss_reported_ = true;
}

bool LoopbackConnection::run_lane(Lane lane, Report& report) {
  std::deque<Operation>& queue = theirs().lanes[static_cast<size_t>(lane)];
  bool reported = false;
  while (link_->lost.ok() && !queue.empty() && !report.full()) {
    Operation& operation = queue.front();
    // The operations behind it wait as well, because a lane keeps its order.
    if (!is_here(operation.arrives)) break;
    link_->lost = carry_out(lane, operation, report);
    // The peer wakes up for a result or a loss alone.
    reported |= !link_->lost.ok() || lane == Lane::get || operation.tag != 0;
    queue.pop_front();
  }
  return reported;
}

absl::Status LoopbackConnection::carry_out(Lane lane, Operation& operation, Report& report) {
  if (lane != Lane::message) {
    GRADRAIL_RETURN_IF_ERROR(move_bytes(lane, operation));
  }
  if (lane == Lane::message) report.add_message(this, std::move(operation.message));
  if (lane == Lane::get || operation.tag != 0) {
    GRADRAIL_CHECK(theirs().done.size() < kQueueDepth);  // Link, invariant 1: the operation still counts
    theirs().done.push_back({operation.tag, lane == Lane::get});
  }
  if (operation.immediate) {
    report.add({.kind = Completion::Kind::put_arrived, .connection = this, .immediate = *operation.immediate});
  }
  return absl::OkStatus();
}

absl::Status LoopbackConnection::refused(const absl::Status& why) const {
  return {why.code(), fmt::format("{}: refused: {}", describe(), message_of(why))};
}

absl::Status LoopbackConnection::move_bytes(Lane lane, const Operation& operation) {
  if (operation.bytes == 0) return absl::OkStatus();
  GRADRAIL_CHECK(link_->lost.ok() && operation.memory != nullptr);  // Link, invariants 2 and 3
  const absl::StatusOr<std::byte*> found =
      // Looked up now and not at the post: the region may have ended since.
      us().regions->resolve(lane == Lane::put ? "put" : "get", operation.key,
                            {.offset = operation.offset,
                             .bytes = operation.bytes,
                             .wanted = lane == Lane::put ? Access::remote_write : Access::remote_read});
  if (!found.ok()) return refused(found.status());
  std::byte* const remote = *found;
  std::memcpy(lane == Lane::put ? remote : operation.memory, lane == Lane::put ? operation.memory : remote,
              operation.bytes);
  return absl::OkStatus();
}

}  // namespace gradrail::transport::loopback
