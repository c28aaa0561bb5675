#include "worker/client/session/rejoin.h"

#include <algorithm>
#include <thread>
#include <utility>

#include "base/check.h"
#include "base/log.h"
#include "base/status.h"
#include "fmt/format.h"
#include "ps/protocol/optimizer_settings.h"
#include "worker/client/session/stop.h"

namespace gradrail::worker {
namespace {

/// A restarted ps needs hundreds of milliseconds to serve: a shorter pause would not find it earlier.
constexpr auto kBetweenRejoins = std::chrono::milliseconds(200);
/// 16 KiB; with the stride doubled each time, 2^20 steps need ten reductions.
constexpr size_t kMaxHistory = 1024;

}  // namespace

Rejoin::Rejoin(const ClientOptions& options, RunFailure& failure, Telemetry& telemetry, Exchange& exchange,
               PathManager& paths, Session& session, Steps steps)
    : options_(options),
      failure_(failure),
      telemetry_(telemetry),
      exchange_(exchange),
      paths_(paths),
      session_(session),
      steps_(std::move(steps)) {}

bool Rejoin::is_due() const {
  const absl::Status failed = failure_.status();
  if (failed.ok() || under_way_ || options_.recovery.rejoin_timeout == Duration::zero()) return false;
  // A worker that has finished its steps would not repeat those that a lost ps forgets. Its own silence loses none.
  return session_.steps_finished() ? is_returnable(failed) : may_be_remedied(failed);
}

/// The others wait for a member, and would continue without it while it joins again. They join again themselves if a ps
/// is lost and no backup replaces it.
bool Rejoin::is_awaited() const {
  if (!session_.has_backups() || session_.joined_count() == 0) return false;
  const bool is_member_everywhere = session_.joined_count() == session_.controls().size();
  return is_member_everywhere ? !failure_.failed() : !session_.found_other_process();
}

absl::Status Rejoin::join_first(TimePoint deadline) {
  absl::Status joined = steps_.join_cluster(deadline);
  deadline = std::min(deadline, Clock::now() + options_.recovery.rejoin_timeout);
  while (is_server_loss(joined) && !asked_to_stop(options_) && Clock::now() < deadline && !is_awaited()) {
    options_.hooks.log(fmt::format("{}; joining again", message_of(joined)));
    if (session_.joined_count() == 0) session_.forget_group();
    release();
    std::this_thread::sleep_for(kBetweenRejoins);
    joined = steps_.join_cluster(deadline);
  }
  return joined;
}

absl::Status Rejoin::run() {
  GRADRAIL_CHECK(is_due());
  const absl::Status cause = failure_.status();
  const TimePoint deadline = Clock::now() + options_.recovery.rejoin_timeout;
  const uint64_t former_version = exchange_.global_step();
  const bool returns = is_returnable(cause);
  const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(options_.recovery.rejoin_timeout).count();
  options_.hooks.log(returns ? fmt::format("{}; trying for up to {} s", message_of(cause), seconds)
                             : fmt::format("{}; waiting up to {} s for its restart", message_of(cause), seconds));
  under_way_ = true;
  const uint64_t former_group = session_.group();
  const bool saved_before = session_.saves_checkpoints();
  left_position_ = position();
  left_step_ = exchange_.step();
  left_done_step_ = exchange_.done_step(0);
  session_.begin_return();
  unanswered_steps_ = exchange_.is_unanswered_push() ? 1 : 0;
  session_.set_origin_position(left_position_ - std::min(left_position_, unanswered_steps_));
  absl::Status joined;
  // A ps needs time to start, and the others to drop the former group: attempts fail in several ways until then.
  do {
    release();
    joined = join_once(deadline, former_group);
    // ALREADY_EXISTS: another ps may still count our former incarnation as a member, until its heartbeat expires, or
    // belong to the former group. FAILED_PRECONDITION: a backup may not have its role yet; otherwise it is a permanent
    // refusal, such as another version or other options.
    const bool may_pass = is_server_loss(joined) || absl::IsAlreadyExists(joined) ||
                          (absl::IsFailedPrecondition(joined) && session_.has_backups());
    if (joined.ok() || asked_to_stop(options_) || !may_pass) break;
    std::this_thread::sleep_for(kBetweenRejoins);
  } while (Clock::now() < deadline);
  under_way_ = false;
  if (absl::IsUnavailable(joined) && !is_server_loss(joined)) {  // the error concerns this worker's GPU
    failure_.fail(joined);
    return joined;
  }
  if (!joined.ok()) {
    // UNAVAILABLE also after a request to stop: no server has the state of this run, so that nothing was completed.
    failure_.fail(absl::UnavailableError(
        asked_to_stop(options_) ? fmt::format("{}, and had not returned at the request to stop", message_of(cause))
        : returns               ? fmt::format("{}, and could not ({})", message_of(cause), message_of(joined))
                                : fmt::format("{}, and did not return ({})", message_of(cause), message_of(joined))));
    return failure_.status();
  }
  if (saved_before && !session_.saves_checkpoints())
    options_.hooks.log(
        "no checkpoints are saved any more: a parameter server was started again without --checkpoint_dir");
  // A step without an answer is not part of the former global step either.
  const uint64_t answered = left_position_ - std::min(left_position_, unanswered_steps_);
  const uint64_t repeated = answered - std::min(answered, position());
  telemetry_.count_rejoin(repeated);
  options_.hooks.log(fmt::format("{}: global step {} where it was {}; {} steps of this worker are done once more{}",
                                 returns ? "this worker has joined again" : "all parameter servers are back",
                                 exchange_.global_step(), former_version, repeated,
                                 lost_steps() == 0 ? "" : ": a backup had taken over without them"));
  return absl::OkStatus();
}

/// Returns to the state before the first join; only the model's memory and the history stay.
void Rejoin::release() {
  session_.release();
  exchange_.clear();
  paths_.clear();
  failure_.clear();  // the heartbeats have stopped before: they would record their ps tasks as lost
}

absl::Status Rejoin::join_once(TimePoint deadline, uint64_t former_group) {
  const int64_t former_base = session_.run_base();
  absl::Status joined = steps_.join_cluster(deadline);
  if (!joined.ok()) {
    session_.forget_group();  // the origin stays the group before
    session_.set_run_base(former_base);
    return joined;
  }
  const bool same_servers = session_.group() == former_group;
  if (session_.has_started() && !same_servers && !session_.began_from().has_value()) {
    log_warning(
        "the parameter servers have restored no checkpoint ({}): the run continues with the chief's parameters{}, "
        "global steps count from 0 again, and the result may differ in bits from a run without the loss",
        session_.saves_checkpoints() ? "see their logs" : "not all of them have --checkpoint_dir",
        ps::state_vectors(options_.optimizer.kind) > 0 ? ", the optimizer state is reset" : "");
  }
  // A restarted ps has lost the barriers, and all workers count them from 0 again.
  if (!same_servers) session_.forget_barriers();
  if (session_.steps_finished()) {
    const absl::Status sent = session_.finish_steps();
    if (absl::IsOutOfRange(sent)) return absl::UnavailableError(sent.message());  // silent again: another attempt
    GRADRAIL_RETURN_IF_ERROR(sent);
  }
  GRADRAIL_RETURN_IF_ERROR(steps_.start());
  restore_position(same_servers);
  return absl::OkStatus();
}

/// Moves the position back by the steps of this worker that the parameters do not contain any more.
void Rejoin::restore_position(bool same_servers) {
  if (session_.sums()) return;  // the ps counts the steps there
  // Workers that joined earlier have made steps since. Versions above the restored one have no step of this worker.
  const uint64_t version = same_servers ? exchange_.global_step() : session_.began_from().value_or(0);
  uint64_t position = position_at(version);
  if (same_servers) {
    // A step without an answer may have been applied: repeating it would apply it twice.
    position = left_position_ - lost_steps();
  } else if (!session_.began_from().has_value()) {
    // The chief's copy of the parameters is from before the step without an answer, and the versions restart.
    position = left_position_ - std::min(left_position_, unanswered_steps_);
    history_.clear();
  }
  session_.set_run_base(static_cast<int64_t>(exchange_.step() - position));
  // Versions above the restored one will be given again, to other updates.
  std::erase_if(history_, [&](const Seen& seen) { return seen.position > position || seen.version > version; });
  if (history_.empty()) history_.push_back({version, position});
}

/// Steps of this worker that the servers have answered and lost. A network was split: the worker continued with the
/// primary, and the backup took over with the workers on its side.
uint64_t Rejoin::lost_steps() const {
  const std::optional<uint64_t>& kept = session_.left_steps();
  if (!kept.has_value() || *kept >= left_done_step_) return 0;
  return std::min(left_position_, left_step_ - *kept);
}

void Rejoin::begin_history() {
  if (session_.has_started()) return;
  session_.set_started();
  if (!session_.sums()) history_.push_back({exchange_.global_step(), position()});
}

void Rejoin::record_position() {
  if (session_.sums() || options_.recovery.rejoin_timeout == Duration::zero() || position() % history_stride_ != 0)
    return;
  history_.push_back({exchange_.global_step(), position()});
  if (history_.size() < kMaxHistory) return;
  // Every other entry is removed: the exact step matters less for older entries.
  for (size_t i = 0; i < kMaxHistory / 2; ++i) history_[i] = history_[2 * i];
  history_.resize(kMaxHistory / 2);
  history_stride_ *= 2;
}

uint64_t Rejoin::position_at(uint64_t version) const {
  const auto later = std::upper_bound(history_.begin(), history_.end(), version,
                                      [](uint64_t wanted, const Seen& seen) { return wanted < seen.version; });
  if (history_.empty()) return 0;
  return later == history_.begin() ? later->position : std::prev(later)->position;  // no entry is older than the join
}

}  // namespace gradrail::worker
