#include "launch/etcd/registration.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/memory/memory.h"
#include "base/log.h"
#include "base/resource_limits.h"
#include "base/status.h"
#include "fmt/format.h"
#include "gradrail/cluster.h"

namespace gradrail::launch {
namespace {

/// Three attempts for each lease: the loss of one has no effect.
constexpr auto kBetweenRenewals = std::chrono::milliseconds(kLeaseSeconds * 1000 / 3);
constexpr auto kBetweenTries = std::chrono::milliseconds(500);  // several fit into the rest of the lease
// One read each 200 ms is a negligible load for etcd, and no user notices the delay.
constexpr auto kBetweenLooks = std::chrono::milliseconds(200);
constexpr auto kFirstNotice = std::chrono::seconds(1);  // an etcd that is up has answered by then
constexpr auto kNoticeEvery = std::chrono::seconds(10);
/// A task that holds the key for longer was not killed a moment ago.
constexpr auto kPredecessorEnds = std::chrono::seconds(3 * kLeaseSeconds);

}  // namespace

std::string ps_prefix(const std::string& job) { return fmt::format("/gradrail/{}/ps/", job); }

Registration::Registration(const RegistrationRequest& request, std::unique_ptr<Etcd> etcd)
    : etcd_(std::move(etcd)),
      key_(fmt::format("{}{}", ps_prefix(request.where.job), request.ps_index)),
      host_(request.host) {}

absl::StatusOr<std::unique_ptr<Registration>> Registration::take(const RegistrationRequest& request) {
  GRADRAIL_ASSIGN_OR_RETURN(std::unique_ptr<Etcd> etcd, Etcd::open(request.where.endpoints));
  auto registration = absl::WrapUnique(new Registration(request, std::move(etcd)));
  GRADRAIL_RETURN_IF_ERROR(registration->wait_for_key(request));
  // A thread of its own: a step of training can take longer than a lease.
  GRADRAIL_ASSIGN_OR_RETURN(registration->thread_,
                            start_thread("that renews the lease in etcd", [r = registration.get()] { r->run(); }));
  return registration;
}

absl::Status Registration::wait_for_key(const RegistrationRequest& request) {
  const TimePoint deadline = Clock::now() + request.timeout;
  TimePoint notice_at = Clock::now() + kFirstNotice;
  std::optional<TimePoint> held_since;
  while (true) {
    const absl::Status renewed = renew(0);
    std::string what(message_of(renewed));
    if (absl::IsAlreadyExists(renewed)) {
      if (!held_since) held_since = Clock::now();
      if (Clock::now() - *held_since > kPredecessorEnds)
        return absl::AlreadyExistsError(
            fmt::format("{} ({}): was a task started twice? Another run needs another name behind the address", what,
                        request.where.text));
      what += fmt::format(" (the key of a killed task is free {} s later)", kLeaseSeconds);
    } else if (absl::IsUnavailable(renewed)) {
      what += fmt::format(" (is it started, and is the address in --rendezvous {} right?)", request.where.text);
    } else {
      return renewed;
    }
    if (Clock::now() >= deadline)
      return absl::DeadlineExceededError(
          fmt::format("waited {} s (--join-timeout) for {}", request.timeout / std::chrono::seconds(1), what));
    if (Clock::now() >= notice_at) {
      notice_at = Clock::now() + kNoticeEvery;
      request.say("waiting for " + what);
    }
    std::this_thread::sleep_for(std::min<Duration>(kBetweenLooks, deadline - Clock::now()));
  }
}

Registration::~Registration() {
  {
    const MutexLock lock(mutex_);
    ending_ = true;
  }
  changed_.notify_all();
  if (thread_.joinable()) thread_.join();
  // The key is free at once for a ps that starts again. If the call fails, the lease expires.
  if (lease_ != 0) etcd_->revoke(lease_).IgnoreError();
}

void Registration::publish(uint16_t port) {
  {
    const MutexLock lock(mutex_);
    port_ = port;
  }
  changed_.notify_all();
}

void Registration::run() {
  MutexLock lock(mutex_);
  Duration pause = Duration::zero();  // the lease may be half over
  uint16_t port = 0;
  while (!ending_) {
    const TimePoint next = Clock::now() + pause;
    while (!ending_ && port_ == port && changed_.wait_until(lock, next)) {
    }
    if (ending_) return;
    port = port_;
    lock.unlock();  // publish() must not wait for etcd
    const absl::Status renewed = renew(port);
    report(renewed);
    pause = renewed.ok() ? kBetweenRenewals : kBetweenTries;
    lock.lock();
  }
}

absl::Status Registration::keep_lease() {
  if (lease_ != 0) {
    GRADRAIL_ASSIGN_OR_RETURN(const bool kept, etcd_->keep_alive(lease_));
    if (kept) return absl::OkStatus();
    lease_ = 0;  // etcd was unreachable for longer or has restarted, or this task was stopped
  }
  GRADRAIL_ASSIGN_OR_RETURN(lease_, etcd_->grant(kLeaseSeconds));
  return absl::OkStatus();
}

/// Writes the host, and the port unless it is 0, to the key. The key belongs to the task whose lease it has. This also
/// shows whether a write came through whose answer was lost.
absl::Status Registration::renew(uint16_t port) {
  GRADRAIL_RETURN_IF_ERROR(keep_lease());
  if (host_.empty()) host_ = etcd_->local_host();  // after the first answer
  const std::string value = port == 0 ? host_ : to_string({.host = host_, .port = port});
  GRADRAIL_ASSIGN_OR_RETURN(const Etcd::Listing found, etcd_->list(key_));
  if (!found.entries.empty()) {
    const Etcd::Entry& there = found.entries.front();
    if (there.lease != lease_)
      return absl::AlreadyExistsError(
          fmt::format("another task holds the key {} of this task, at {}", key_, there.value));
    if (there.value == value) return absl::OkStatus();
  }
  GRADRAIL_ASSIGN_OR_RETURN(const Etcd::Put put, etcd_->put_if_unchanged(found.revision, {key_, value, lease_}));
  if (put == Etcd::Put::done) return absl::OkStatus();
  return absl::UnavailableError(fmt::format("etcd: {} changed during the write", key_));
}

/// Logs each error once: etcd can be unreachable for hours without an effect on the run.
void Registration::report(const absl::Status& status) {
  if (status.ok()) {
    if (!trouble_.empty()) log_warning("this task is registered again in etcd, as {}", key_);
    trouble_.clear();
    return;
  }
  const std::string why(message_of(status));
  if (why == trouble_ || (!trouble_.empty() && absl::IsUnavailable(status))) return;
  trouble_ = why;
  log_warning("{}; the run continues, but a task that starts now may not find this one", why);
}

}  // namespace gradrail::launch
