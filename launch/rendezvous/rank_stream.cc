#include "launch/rendezvous/rank_stream.h"

#include <string_view>

#include "absl/strings/str_replace.h"
#include "base/status.h"
#include "fmt/format.h"
#include "gradrail/cluster.h"

namespace gradrail::launch {

absl::Status RankStream::send(proto::RankMessage message, TimePoint deadline) {
  if (failed_.ok()) {
    outgoing_ = std::move(message);
    failed_ = wait_sent(deadline);
  }
  return failed_;
}

absl::StatusOr<proto::RankMessage> RankStream::receive(proto::RankMessage::ContentCase kind, TimePoint deadline) {
  if (failed_.ok()) failed_ = wait_arrived(deadline);
  if (!failed_.ok()) return failed_;
  proto::RankMessage message = std::move(incoming_);
  if (message.content_case() != kind) {
    failed_ = absl::UnavailableError(fmt::format("{} sent an unexpected message", peer_name_));
    return failed_;
  }
  MutexLock lock(mutex_);
  arrived_ = false;
  const bool more = !broken_;
  lock.unlock();
  if (more) start_read(&incoming_);
  return message;
}

absl::Status RankStream::wait_sent(TimePoint deadline) {
  MutexLock lock(mutex_);
  if (broken_) return lost(lock);
  writing_ = true;
  lock.unlock();
  start_write(&outgoing_);
  lock.lock();
  while (writing_) {
    if (!changed_.wait_until(lock, deadline) && writing_) return late();
  }
  if (!broken_) return absl::OkStatus();
  // The peer can end the exchange in order as soon as it has this message.
  while (!done_) changed_.wait(lock);
  return is_written_ && why_.ok() ? absl::OkStatus() : lost(lock);
}

absl::Status RankStream::wait_arrived(TimePoint deadline) {
  MutexLock lock(mutex_);
  while (!arrived_ && !broken_) {
    if (!changed_.wait_until(lock, deadline) && !arrived_ && !broken_) return late();
  }
  return arrived_ ? absl::OkStatus() : lost(lock);
}

/// The stream is broken; the last callback has the cause.
absl::Status RankStream::lost(MutexLock& lock) {
  while (!done_) changed_.wait(lock);
  if (absl::IsFailedPrecondition(why_))
    return absl::FailedPreconditionError(fmt::format("{} refused this task: {}", peer_name_, message_of(why_)));
  return absl::UnavailableError(fmt::format("{} has ended; its output has the cause", peer_name_));
}

absl::Status RankStream::late() {
  broken_ = true;
  cancel();
  return absl::DeadlineExceededError(
      fmt::format("{} does not answer (is its process stopped, or its network down?)", peer_name_));
}

/// Whether the caller now calls close() or release().
bool RankStream::begins_end() {
  broken_ = true;
  return !writing_ && !std::exchange(finished_, true);
}

void RankStream::note_read(bool ok) {
  MutexLock lock(mutex_);
  arrived_ = ok;
  const bool last = !ok && begins_end();
  changed_.notify_all();
  lock.unlock();
  if (last) release();
}

void RankStream::note_written(bool ok) {
  MutexLock lock(mutex_);
  writing_ = false;
  is_written_ = ok;
  const bool last = (broken_ || !ok) && begins_end();
  changed_.notify_all();
  lock.unlock();
  if (last) release();
}

void RankStream::note_done(const absl::Status& why) {
  MutexLock lock(mutex_);
  why_ = why;
  done_ = true;
  changed_.notify_all();
}

void RankStream::end(const absl::Status& reason) {
  constexpr auto kGrace = std::chrono::seconds(2);  // time for the last messages, which are short
  MutexLock lock(mutex_);
  const bool last = begins_end();
  lock.unlock();
  if (last) close(reason);
  lock.lock();
  TimePoint deadline = Clock::now() + kGrace;
  while (!done_) {
    if (changed_.wait_until(lock, deadline) || done_) continue;
    cancel();
    deadline = TimePoint::max();
  }
}

std::string host_of_peer(const std::string& peer) {
  // gRPC escapes the brackets and the zone of an IPv6 address.
  const std::string address = absl::StrReplaceAll(peer, {{"%5B", "["}, {"%5D", "]"}, {"%25", "%"}});
  const size_t scheme = address.find(':');
  if (scheme == std::string::npos || !address.starts_with("ipv")) return "";
  const absl::StatusOr<HostPort> parsed = parse_host_port(std::string_view(address).substr(scheme + 1));
  if (!parsed.ok()) return "";
  constexpr std::string_view kMapped = "::ffff:";  // an IPv4 peer of a socket for both families
  return parsed->host.starts_with(kMapped) ? parsed->host.substr(kMapped.size()) : parsed->host;
}

}  // namespace gradrail::launch
