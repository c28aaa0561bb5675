#include "tools/launch/etcd/lease_keeper.h"

#include <utility>

#include "base/status.h"
#include "fmt/format.h"
#include "spdlog/spdlog.h"

namespace gradrail::tools {
namespace {

/// One of three may get lost.
constexpr auto kBetweenBeats = std::chrono::milliseconds(kLeaseSeconds * 1000 / 3);
// Several tries fit into what is left of the lease.
constexpr auto kBetweenTries = std::chrono::milliseconds(500);

}  // namespace

LeaseKeeper::LeaseKeeper(std::unique_ptr<Etcd> etcd, std::string key, int64_t lease, TaskRecord card)
    : etcd_(std::move(etcd)), key_(std::move(key)), lease_(lease), card_(std::move(card)) {
  // A thread of its own: a step of training can take longer than a lease.
  thread_ = std::thread([this] { run(); });
}

LeaseKeeper::~LeaseKeeper() {
  {
    const MutexLock lock(mutex_);
    ending_ = true;
  }
  changed_.notify_all();
  thread_.join();
  // Where that fails, the lease ends by itself.
  // The place is free at once for a task that starts again.
  if (lease_ != 0) etcd_->revoke(lease_).IgnoreError();
}

void LeaseKeeper::publish_address(const std::string& address) {
  {
    const MutexLock lock(mutex_);
    card_.address = address;
    is_new_ = true;
  }
  changed_.notify_all();
}

void LeaseKeeper::run() {
  MutexLock lock(mutex_);
  Duration pause = Duration::zero();  // the lease may be half over
  while (!ending_) {
    const TimePoint next = Clock::now() + pause;
    while (!ending_ && !is_new_ && changed_.wait_until(lock, next)) {
    }
    if (ending_) return;
    is_new_ = false;
    // A copy, so that no call to etcd runs under the lock: publish_address() must not wait for etcd.
    const TaskRecord card = card_;
    lock.unlock();
    const absl::Status kept = beat(card);
    tell(kept);
    pause = kept.ok() ? kBetweenBeats : kBetweenTries;
    lock.lock();
  }
}

absl::Status LeaseKeeper::keep_lease() {
  if (lease_ != 0) {
    GRADRAIL_ASSIGN_OR_RETURN(const bool kept, etcd_->keep_alive(lease_));
    if (kept) return absl::OkStatus();
    lease_ = 0;  // etcd was away for longer or has restarted, or this task was stopped
  }
  GRADRAIL_ASSIGN_OR_RETURN(lease_, etcd_->grant(kLeaseSeconds));
  return absl::OkStatus();
}

/// Looks each time whether the key is there, too: another client may have removed it.
absl::Status LeaseKeeper::beat(const TaskRecord& card) {
  GRADRAIL_RETURN_IF_ERROR(keep_lease());
  GRADRAIL_ASSIGN_OR_RETURN(const Etcd::Listing found, etcd_->list({.key = key_}));
  const std::string text = to_text(card);
  if (!found.entries.empty()) {
    const Etcd::Entry& there = found.entries.front();
    // The lease as well: a key under an old lease would vanish with it.
    if (there.value == text && there.lease == lease_) return absl::OkStatus();
    const std::optional<TaskRecord> other = task_record_from(there.value);
    // This task was away for longer than its lease, and its place was given to another one.
    if (!other || other->id != card.id)
      return absl::AlreadyExistsError(fmt::format("another task has taken our place {} (it is at {})", key_,
                                                  other ? other->address : "an address that cannot be read"));
  }
  GRADRAIL_ASSIGN_OR_RETURN(const Etcd::Put put,
                            etcd_->put_if_unchanged({.key = key_}, found.revision, {key_, text, lease_}));
  return put == Etcd::Put::done ? absl::OkStatus()
                                : absl::UnavailableError(fmt::format("{} changed while we wrote it", key_));
}

/// Each trouble once: etcd may be away for hours, and the run does not mind.
void LeaseKeeper::tell(const absl::Status& status) {
  if (status.ok()) {
    if (!trouble_.empty()) spdlog::warn("etcd has us again as {}", key_);
    trouble_.clear();
    return;
  }
  const std::string why(message_of(status));
  if (why == trouble_ || (!trouble_.empty() && absl::IsUnavailable(status))) return;
  trouble_ = why;
  spdlog::warn("{}; the run goes on, but a task that starts now may not find this one", why);
}

}  // namespace gradrail::tools
