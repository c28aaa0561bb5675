#include "worker/client/client_impl.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "base/check.h"
#include "base/log.h"
#include "base/status.h"
#include "fmt/format.h"
#include "fmt/ranges.h"
#include "gpu/compute/stream_marks.h"
#include "ps/protocol/altered_data.h"
#include "ps/protocol/control.pb.h"
#include "ps/protocol/training.h"
#include "worker/client/session/stop.h"

namespace gradrail::worker {
namespace {

constexpr auto kExchangeReportEvery = std::chrono::seconds(10);
/// An exchange under way ends long before, unless it waits for a worker that may never join.
constexpr auto kStopGrace = std::chrono::seconds(2);
/// A dump is answered within a second of its signal, so that a wait looks for signals twice as often.
constexpr auto kLookRound = std::chrono::milliseconds(500);
/// A full queue of the transport has no event to announce room: the wait looks again after this time.
constexpr auto kRetryRound = std::chrono::milliseconds(1);

}  // namespace

ClientImpl::ClientImpl(ClientOptions options, Schema schema, std::shared_ptr<ps::ControlDialer> dialer)
    : options_(std::move(options)),
      identity_(options_.task_index),
      memory_(std::move(schema), options_.compression.push, options_.compression.returns),
      telemetry_(options_),
      failure_(!options_.recovery.backups.empty(), [this] { paths_.wake(); }),
      exchange_(options_, identity_, memory_, failure_, telemetry_, paths_),
      paths_(options_, identity_, memory_, failure_, telemetry_, exchange_,
             {.why_removed =
                  [this](uint32_t ps_index) { return session_.control(ps_index).why_removed(identity_.member()); },
              .answers = [this](uint32_t ps_index) { return session_.control(ps_index).stats().status(); }}),
      session_(options_, identity_, memory_, failure_, telemetry_, paths_, std::move(dialer)),
      failover_(options_, failure_, telemetry_, exchange_, paths_, session_),
      rejoin_(options_, failure_, telemetry_, exchange_, paths_, session_,
              {.join_cluster = [this](TimePoint deadline) { return join_cluster(deadline); },
               .start = [this] { return start(); }}) {
  if (!options_.hooks.log) options_.hooks.log = [](const std::string& text) { log_warning("{}", text); };
}

ClientImpl::~ClientImpl() {
  // After a failure no Leave is sent: the end of the heartbeat is then a loss, which the others must see.
  const absl::Status failed = failure_.status();
  if (failed.ok()) leave().IgnoreError();
  // Altered data ends the run of all tasks. The shard may not get its notice over the data connection, which ends now.
  if (ps::is_altered_data(message_of(failed))) leave(std::string(message_of(failed))).IgnoreError();
  session_.stop_heartbeats();
}

absl::Status ClientImpl::join() {
  const TimePoint now = Clock::now();
  // min(): the sum must not overflow when the timeout has no limit.
  const TimePoint deadline = now + std::min(options_.recovery.join_timeout, TimePoint::max() - now);
  GRADRAIL_RETURN_IF_ERROR(session_.open());
  GRADRAIL_RETURN_IF_ERROR(memory_.allocate(options_.placement.place_memory, options_.placement.device));
  return rejoin_.join_first(deadline);
}

absl::Status ClientImpl::join_cluster(TimePoint deadline) {
  GRADRAIL_RETURN_IF_ERROR(session_.describe(deadline));
  if (options_.bucket_bytes == 0) {
    options_.bucket_bytes =
        ps::ShardMap::default_bucket_bytes(memory_.layout().elements, static_cast<uint32_t>(paths_.links().size()));
  }
  // The cut precedes the join: a model that cannot be cut must not set the servers up.
  GRADRAIL_RETURN_IF_ERROR(exchange_.cut_model());
  GRADRAIL_ASSIGN_OR_RETURN(const std::vector<uint64_t> first_steps, session_.join(deadline, rejoin_.is_under_way()));
  exchange_.set_first_steps(first_steps);
  absl::Status connected = paths_.connect_all(deadline);
  // The worker keeps its membership at the backup.
  while (failover_.survives(connected)) connected = paths_.connect_all(deadline);
  GRADRAIL_RETURN_IF_ERROR(connected);
  telemetry_.publish(stats(), Clock::now());
  return failover_.recover();
}

absl::Status ClientImpl::check_idle(std::string_view call) const {
  if (!exchange_.is_under_way()) return absl::OkStatus();
  return absl::FailedPreconditionError(fmt::format("{}: an exchange is under way, wait() for it first", call));
}

absl::Status ClientImpl::start() {
  // A ps was lost after the join, and no backup replaces it. The rejoin starts this worker.
  if (!started_ && !failover_.recover().ok() && rejoin_.is_due()) return rejoin_.run();
  GRADRAIL_RETURN_IF_ERROR(remedy_outside_exchange());
  GRADRAIL_RETURN_IF_ERROR(check_idle("start"));
  if (session_.is_initialised() || !session_.is_chief()) return pull();
  GRADRAIL_RETURN_IF_ERROR(prepare_offer());
  begin(ps::ArrivalKind::initialise);
  exchange();
  GRADRAIL_RETURN_IF_ERROR(wait());
  return set_started();
}

absl::Status ClientImpl::pull() {
  GRADRAIL_RETURN_IF_ERROR(remedy_outside_exchange());
  GRADRAIL_RETURN_IF_ERROR(check_idle("pull"));
  // This worker may become the chief while it waits for initial values: it then offers its own.
  if (!session_.is_initialised()) GRADRAIL_RETURN_IF_ERROR(prepare_offer());
  begin(ps::ArrivalKind::pull);
  exchange();
  GRADRAIL_RETURN_IF_ERROR(wait());
  return set_started();
}

absl::Status ClientImpl::prepare_offer() {
  // After the start, the newest parameters may be in GPU memory only.
  if (started_) GRADRAIL_RETURN_IF_ERROR(memory_.fetch_parameters());
  return memory_.begin_offer();
}

absl::Status ClientImpl::set_started() {
  // After a rejoin these are repeated without effect: the run has started once.
  rejoin_.begin_history();
  paths_.set_started();
  session_.set_initialised();
  started_ = true;
  // Now, and not after a failure: a shard that maps the gradients may still read the offer then.
  return memory_.end_offer();
}

/// Begins an exchange of all fragments.
void ClientImpl::begin(ps::ArrivalKind kind) {
  for (Exchange::Index fragment = 0; fragment < exchange_.fragment_count(); ++fragment) begin(fragment, kind);
}

/// False: the run has failed, because a push needs parameters.
bool ClientImpl::begin(Exchange::Index fragment, ps::ArrivalKind kind) {
  if (kind == ps::ArrivalKind::push && !started_) {
    failure_.fail(absl::FailedPreconditionError("exchange before start(): there are no parameters yet"));
    return false;
  }
  GRADRAIL_CHECK(!exchange_.is_under_way(fragment));
  const TimePoint now = Clock::now();
  if (!exchange_.is_under_way()) paths_.maybe_failback(now);  // paths may change between exchanges only
  telemetry_.answer_dump();
  session_.follow_run_base();
  exchange_.begin(fragment, kind, now);
  return true;
}

void ClientImpl::ready(size_t tensor_index) {
  const Exchange::Index fragment = exchange_.fragment_of(tensor_index);
  if (exchange_.is_under_way(fragment) || begin(fragment, ps::ArrivalKind::push)) exchange_.ready(tensor_index);
}

void ClientImpl::ready(ps::ElementRange part, float rate, float weight) {
  const Exchange::Index fragment = memory_.layout().fragment_at(part.first);
  if (exchange_.is_under_way(fragment) || begin(fragment, ps::ArrivalKind::push)) exchange_.ready(part, rate, weight);
}

void ClientImpl::exchange() {
  for (Exchange::Index fragment = 0; fragment < exchange_.fragment_count(); ++fragment) exchange(fragment);
}

void ClientImpl::exchange(Exchange::Index fragment) {
  if (exchange_.is_under_way(fragment) || begin(fragment, ps::ArrivalKind::push)) exchange_.push_all(fragment);
}

absl::Status ClientImpl::wait() {
  GRADRAIL_RETURN_IF_ERROR(remedy_failure());
  for (Exchange::Index fragment = 0; fragment < exchange_.fragment_count(); ++fragment)
    GRADRAIL_RETURN_IF_ERROR(wait(fragment));
  return absl::OkStatus();
}

absl::Status ClientImpl::wait(Exchange::Index fragment) {
  GRADRAIL_RETURN_IF_ERROR(remedy_failure());
  if (!exchange_.is_under_way(fragment)) return absl::OkStatus();
  if (!exchange_.is_declared(fragment)) {
    return absl::FailedPreconditionError(
        "wait() before exchange(): ready() has not reported all tensors, so that the wait would never end");
  }
  // A short exchange ends here, without a look at the clock. The loop below has all remedies.
  while (exchange_.outstanding(fragment) > 0 && !exchange_.has_backlog() && paths_.poll_briefly() > 0) {
  }
  next_notice_ = exchange_.begun_at(fragment) + kExchangeReportEvery;
  gpu::WaitInTurns staging_wait;
  while (exchange_.outstanding(fragment) > 0) {
    telemetry_.answer_dump();
    GRADRAIL_RETURN_IF_ERROR(recover());
    if (!exchange_.is_under_way(fragment)) return absl::OkStatus();  // rejoined: the trainer continues at position()
    if (exchange_.kind(fragment) == ps::ArrivalKind::pull && !session_.is_initialised() && session_.is_chief())
      exchange_.offer_instead_of_pull();
    // The end of a copy from a GPU is no event of the wait set: it is polled.
    const bool is_staging = exchange_.post_backlog();
    const bool must_retry = paths_.advance_probes() || exchange_.has_backlog();
    const Duration timeout = is_staging ? Duration::zero() : must_retry ? Duration(kRetryRound) : Duration(kLookRound);
    if (paths_.wait_events(Clock::now() + timeout) > 0) continue;
    if (is_staging) staging_wait.turn();
    GRADRAIL_RETURN_IF_ERROR(on_idle(fragment));
  }
  return finish(fragment);
}

absl::Status ClientImpl::advance(Duration timeout) {
  telemetry_.answer_dump();
  GRADRAIL_RETURN_IF_ERROR(recover());
  exchange_.post_backlog();
  const bool must_retry = paths_.advance_probes() || exchange_.has_backlog();
  if (must_retry) timeout = std::min(timeout, Duration(kRetryRound));
  paths_.wait_events(Clock::now() + timeout);
  return absl::OkStatus();  // the next call has the remedy for a failure, or returns it
}

/// The remedy for a recorded failure is a backup or a rejoin; else the error ends the run. A rejoin drops the exchange.
absl::Status ClientImpl::remedy_failure() {
  if (!failure_.failed()) return absl::OkStatus();
  absl::Status failed = failover_.recover();
  return !failed.ok() && rejoin_.is_due() ? rejoin_.run() : failed;
}

/// A call outside an exchange refers to the state of the servers, which a ps that is started again has lost. They still
/// have it when this worker was lost by silence. If a ps starts again during this rejoin, the run continues from its
/// checkpoint, as in a step.
absl::Status ClientImpl::remedy_outside_exchange() {
  absl::Status failed = failover_.recover();
  // A rejoin offers the chief's initial values, which the program may not have written before start().
  return started_ && is_returnable(failed) && rejoin_.is_due() ? rejoin_.run() : failed;
}

/// Applies the remedy for a lost ps or path, if there is one; else returns the error that ends the run.
absl::Status ClientImpl::recover() {
  GRADRAIL_RETURN_IF_ERROR(remedy_failure());
  if (!paths_.has_lost_path()) return absl::OkStatus();
  const absl::Status replaced = paths_.replace_lost_paths();
  // A path that could not be replaced may have been the first sign of a lost ps. After a takeover or a rejoin the next
  // round replaces what is still lost.
  if (!replaced.ok() && failure_.failed()) return remedy_failure();
  return replaced;
}

absl::Status ClientImpl::set_learning_rate(float rate) {
  OptimizerConfig changed = options_.optimizer;
  changed.learning_rate = rate;
  GRADRAIL_RETURN_IF_ERROR(validate(changed));
  GRADRAIL_RETURN_IF_ERROR(check_idle("set_learning_rate"));
  exchange_.set_rate(rate);
  return absl::OkStatus();
}

absl::Status ClientImpl::set_weight(float weight) {
  if (!(weight > 0.0f && std::isfinite(weight)))
    return absl::InvalidArgumentError(fmt::format("weight {}: must be a finite number, more than 0", weight));
  GRADRAIL_RETURN_IF_ERROR(check_idle("set_weight"));
  exchange_.set_weight(weight);
  return absl::OkStatus();
}

/// Nothing has arrived for half a second: the rare checks are free now.
absl::Status ClientImpl::on_idle(Exchange::Index fragment) {
  const TimePoint now = Clock::now();
  const bool is_overdue = now >= exchange_.begun_at(fragment) + kStopGrace;
  if (asked_to_stop(options_) && (is_interrupted(options_) || is_overdue)) {
    return absl::CancelledError(
        fmt::format("stopped while waiting for the answer to step {}", exchange_.step(fragment)));
  }
  if (now >= next_notice_) {
    log_missing_peers(fragment);
    next_notice_ = Clock::now() + kExchangeReportEvery;
  }
  return absl::OkStatus();
}

absl::Status ClientImpl::finish(Exchange::Index fragment) {
  GRADRAIL_RETURN_IF_ERROR(exchange_.finish(fragment));
  if (paths_.take_lower_left()) session_.ask_for_chief();
  if (exchange_.kind(fragment) != ps::ArrivalKind::push) return absl::OkStatus();
  rejoin_.record_position();
  if (telemetry_.publish_is_due(exchange_.ended_at())) telemetry_.publish(stats(), exchange_.ended_at());
  return absl::OkStatus();
}

void ClientImpl::log_missing_peers(Exchange::Index fragment) {
  // One task stands for all: every shard waits for the same workers.
  const absl::StatusOr<ps::proto::StatsReply> stats = session_.control(0).stats();
  if (!stats.ok()) return;  // the heartbeat reports a lost ps
  if (exchange_.kind(fragment) == ps::ArrivalKind::pull && !session_.is_initialised()) {
    return options_.hooks.log(
        fmt::format("waiting for the chief (worker {}) to initialize the parameters", session_.chief()));
  }
  if (!stats->waiting_for().empty()) {
    return options_.hooks.log(
        fmt::format("step {}: waiting for {}", exchange_.step(fragment), fmt::join(stats->waiting_for(), ", ")));
  }
  options_.hooks.log(fmt::format("step {}: waiting for {}", exchange_.step(fragment), session_.control(0).name()));
}

ClientStats ClientImpl::stats() const {
  ClientStats stats = telemetry_.counters();
  stats.global_step = exchange_.global_step();
  stats.drops_late = !exchange_.repeats_late();
  paths_.describe(stats);
  return stats;
}

absl::Status ClientImpl::upload_trace() { return telemetry_.upload_trace(session_.controls(), identity_.member()); }

absl::StatusOr<std::vector<TaskTrace>> ClientImpl::gather_trace() {
  return telemetry_.gather_trace(session_.controls(), identity_.member());
}

}  // namespace gradrail::worker
