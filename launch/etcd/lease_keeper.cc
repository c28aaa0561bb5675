#include "launch/etcd/lease_keeper.h"

#include <utility>

#include "base/resource_limits.h"
#include "base/status.h"
#include "fmt/format.h"
#include "spdlog/spdlog.h"

namespace gradrail::launch {
namespace {

/// Three attempts for each lease: the loss of one has no effect.
constexpr auto kBetweenRenewals = std::chrono::milliseconds(kLeaseSeconds * 1000 / 3);
// Several attempts fit into the rest of the lease.
constexpr auto kBetweenTries = std::chrono::milliseconds(500);

}  // namespace

LeaseKeeper::LeaseKeeper(std::unique_ptr<Etcd> etcd, std::string key, int64_t lease, TaskRecord record)
    : etcd_(std::move(etcd)), key_(std::move(key)), lease_(lease), record_(std::move(record)) {}

absl::Status LeaseKeeper::start() {
  // A separate thread: a step of training can take longer than a lease.
  GRADRAIL_ASSIGN_OR_RETURN(thread_, start_thread("that renews the lease in etcd", [this] { run(); }));
  return absl::OkStatus();
}

LeaseKeeper::~LeaseKeeper() {
  {
    const MutexLock lock(mutex_);
    ending_ = true;
  }
  changed_.notify_all();
  if (thread_.joinable()) thread_.join();
  // The key is free at once for a task that starts again. If the call fails, the lease expires.
  if (lease_ != 0) etcd_->revoke(lease_).IgnoreError();
}

void LeaseKeeper::publish_address(const std::string& address) {
  {
    const MutexLock lock(mutex_);
    record_.address = address;
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
    const TaskRecord record = record_;
    lock.unlock();
    const absl::Status kept = renew(record);
    report(kept);
    pause = kept.ok() ? kBetweenRenewals : kBetweenTries;
    lock.lock();
  }
}

absl::Status LeaseKeeper::keep_lease() {
  if (lease_ != 0) {
    GRADRAIL_ASSIGN_OR_RETURN(const bool kept, etcd_->keep_alive(lease_));
    if (kept) return absl::OkStatus();
    lease_ = 0;  // etcd was unreachable for longer or has restarted, or this task was stopped
  }
  GRADRAIL_ASSIGN_OR_RETURN(lease_, etcd_->grant(kLeaseSeconds));
  return absl::OkStatus();
}

/// Each renewal also reads the key, because another client may have removed it.
absl::Status LeaseKeeper::renew(const TaskRecord& record) {
  GRADRAIL_RETURN_IF_ERROR(keep_lease());
  GRADRAIL_ASSIGN_OR_RETURN(const Etcd::Listing found, etcd_->list({.key = key_}));
  const std::string text = to_text(record);
  if (!found.entries.empty()) {
    const Etcd::Entry& there = found.entries.front();
    // The lease is compared as well: a key under an old lease expires with that lease.
    if (there.value == text && there.lease == lease_) return absl::OkStatus();
    const std::optional<TaskRecord> other = task_record_from(there.value);
    // This task was stopped for longer than its lease, and another task claimed its key.
    if (!other || other->id != record.id)
      return absl::AlreadyExistsError(fmt::format("another task has claimed the key {} of this task (from {})", key_,
                                                  other ? other->address : "an address that cannot be read"));
  }
  GRADRAIL_ASSIGN_OR_RETURN(const Etcd::Put put,
                            etcd_->put_if_unchanged({.key = key_}, found.revision, {key_, text, lease_}));
  return put == Etcd::Put::done ? absl::OkStatus()
                                : absl::UnavailableError(fmt::format("{} changed during the write", key_));
}

/// Logs each error once: etcd can be unreachable for hours without an effect on the run.
void LeaseKeeper::report(const absl::Status& status) {
  if (status.ok()) {
    if (!trouble_.empty()) spdlog::warn("this task is registered again in etcd, as {}", key_);
    trouble_.clear();
    return;
  }
  const std::string why(message_of(status));
  if (why == trouble_ || (!trouble_.empty() && absl::IsUnavailable(status))) return;
  trouble_ = why;
  spdlog::warn("{}; the run continues, but a task that starts now may not find this one", why);
}

}  // namespace gradrail::launch
