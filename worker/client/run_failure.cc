#include "worker/client/run_failure.h"

#include <utility>

#include "base/check.h"
#include "gpu/driver/native_error.h"

namespace gradrail::worker {
namespace {

constexpr const char* kReturnableMark = "gradrail/returnable";  ///< the payload of a returnable() error

}  // namespace

absl::Status returnable(absl::Status cause) {
  GRADRAIL_CHECK(!cause.ok());
  cause.SetPayload(kReturnableMark, absl::Cord());
  return cause;
}

bool is_returnable(const absl::Status& cause) { return cause.GetPayload(kReturnableMark).has_value(); }

bool is_server_loss(const absl::Status& cause) { return absl::IsUnavailable(cause) && !gpu::is_device_loss(cause); }

bool may_be_remedied(const absl::Status& cause) { return is_server_loss(cause) || is_returnable(cause); }

void RunFailure::fail(absl::Status cause) {
  GRADRAIL_CHECK(!cause.ok());
  {
    MutexLock lock(mutex_);
    // Later errors are consequences of the first one in most cases.
    if (first_.ok()) first_ = std::move(cause);
    failed_.store(true, std::memory_order_release);
  }
  wake_();
}

void RunFailure::lose_server(uint32_t ps_index, absl::Status cause) {
  if (!has_backups_ || !is_server_loss(cause)) return fail(std::move(cause));
  {
    MutexLock lock(mutex_);
    lost_servers_.emplace(ps_index, cause);
    if (failing_over_) return;  // the failover under way finds it in its next round
    if (first_.ok()) first_ = std::move(cause);
    failed_.store(true, std::memory_order_release);
  }
  wake_();
}

absl::Status RunFailure::status() const {
  if (!failed()) return absl::OkStatus();  // no lock: every round of a wait calls this
  MutexLock lock(mutex_);
  return first_;
}

bool RunFailure::has_lost_server(uint32_t ps_index) const {
  MutexLock lock(mutex_);
  return lost_servers_.contains(ps_index);
}

RunFailure::LostServers RunFailure::take_lost_servers() {
  MutexLock lock(mutex_);
  LostServers lost = std::exchange(lost_servers_, {});
  failing_over_ = !lost.empty();
  if (!lost.empty()) first_ = absl::OkStatus();
  failed_.store(lost.empty() && !first_.ok(), std::memory_order_release);
  return lost;
}

void RunFailure::abandon_failover() {
  MutexLock lock(mutex_);
  GRADRAIL_CHECK(failing_over_);
  failing_over_ = false;
}

void RunFailure::clear() {
  MutexLock lock(mutex_);
  first_ = absl::OkStatus();
  lost_servers_.clear();
  failed_.store(false, std::memory_order_release);
}

}  // namespace gradrail::worker
