#include "ps/control/run_agreement.h"

#include <algorithm>
#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/log.h"
#include "base/out_of_memory.h"
#include "base/resource_limits.h"
#include "base/status.h"
#include "fmt/format.h"
#include "gradrail/cluster.h"
#include "ps/checkpoint/folder.h"
#include "ps/control/parent.h"
#include "ps/control/run_setup.h"
#include "ps/protocol/control.pb.h"

namespace gradrail::ps {
namespace {

/// More than any cluster has. Without a limit one request could make this task allocate all memory.
constexpr uint32_t kMaxShards = 1 << 16;

absl::StatusOr<ShardMap> cut(const proto::JoinRequest& request, const Schema& schema, const Training& training,
                             size_t own_shards) {
  if (request.total_shards() > kMaxShards) {
    return absl::InvalidArgumentError(
        fmt::format("join: {} shards are more than {}", request.total_shards(), kMaxShards));
  }
  absl::StatusOr<ShardMap> map =
      ShardMap::cut(layout_of(schema), request.total_shards(), training.bucket_bytes, training.push);
  if (map.ok() && request.first_shard() + own_shards > map->shard_count()) {
    return absl::InvalidArgumentError("join: first shard lies beyond the number of shards");
  }
  return map;
}

/// Parameters and state of the optimizer in this task.
struct ModelMemory {
  uint64_t elements = 0;
  uint64_t vectors = 1;
  uint64_t bytes() const { return elements * vectors * sizeof(float); }
};

uint64_t elements_here(const ShardMap& map, uint32_t first_shard, size_t shard_count) {
  uint64_t elements = 0;
  for (uint32_t i = 0; i < shard_count; ++i) elements += map.shard(first_shard + i).count;
  return elements;
}

absl::Status too_large(const ModelMemory& memory, std::string_view why) {
  return absl::ResourceExhaustedError(fmt::format(
      "{} parameters with {} values each need {} bytes in this ps task: {} (use more ps tasks, or a smaller "
      "model)",
      memory.elements, memory.vectors, memory.bytes(), why));
}

/// Checks the memory of all shards together before any is changed: the kernel grants shared memory that it does not
/// have, and ends this process at the first access.
absl::Status check_memory(const ModelMemory& memory) {
  const std::optional<Rest> rest = available_memory();
  if (!rest.has_value() || memory.bytes() <= rest->amount) return absl::OkStatus();
  return too_large(memory, fmt::format("{} bytes are available ({})", rest->amount, rest->text));
}

/// A worker that lost a ps before its first step has left a group, too, but has no position.
bool has_position(const proto::JoinRequest& request) { return request.has_left_group() && !request.newcomer(); }

/// The first number of a run that is not 0.
uint64_t first_known(std::initializer_list<uint64_t> runs) {
  const auto* known = std::find_if(runs.begin(), runs.end(), [](uint64_t run) { return run != 0; });
  return known == runs.end() ? 0 : *known;
}

}  // namespace

RunSetup::RunSetup(ControlContext& context)
    : agreement(context), primary{.message = std::make_shared<const proto::ReplicateRequest>()} {}

const RunAgreement::Agreed& RunAgreement::agreed() const {
  GRADRAIL_CHECK(agreed_.has_value());
  return *agreed_;
}

const Schema& RunAgreement::schema() const { return agreed().schema; }
Mode RunAgreement::mode() const { return agreed().training.mode; }
int64_t RunAgreement::run_base() const { return agreed().run_base; }

uint32_t RunAgreement::bucket_count(size_t shard) const {
  GRADRAIL_CHECK(shard < context_.shards.size());
  return agreed().map.bucket_count(agreed().first_shard + static_cast<uint32_t>(shard));
}

uint64_t RunAgreement::group() const { return agreed().group; }
uint64_t RunAgreement::run() const { return agreed().run; }

void RunAgreement::set_run(uint64_t run, int64_t run_base) {
  GRADRAIL_CHECK(agreed_.has_value());
  agreed_->run = run;
  agreed_->run_base = run_base;
  MutexLock lock(context_.state.mutex);
  context_.state.run.run = run;
  context_.state.run.run_base = run_base;
}

void RunAgreement::set_began_from(const BeganFrom& began_from) {
  began_from_ = began_from;
  MutexLock lock(context_.state.mutex);
  context_.state.run.began_from = began_from;
}

void RunAgreement::reset() {
  agreed_.reset();
  restored_run_ = 0;
  began_from_ = {};  // the published value stays until the next agreement: a backup may still need it
}

absl::Status RunAgreement::agree(const proto::JoinRequest& request, bool may_restore) {
  const Schema schema = schema_from_proto(request);
  // First: all that follows may rely on a sound schema.
  GRADRAIL_RETURN_IF_ERROR(validate(schema));
  GRADRAIL_ASSIGN_OR_RETURN(const Training training, from_proto(request.training()));
  // Shards keep an entry for every index up to the highest one.
  if (request.member().task_index() >= kMaxWorkers) {
    return absl::InvalidArgumentError(
        fmt::format("worker {} cannot join: the limit is {} workers", request.member().task_index(), kMaxWorkers));
  }
  if (agreed_.has_value()) {
    GRADRAIL_RETURN_IF_ERROR(compare(request, schema, training));
    GRADRAIL_RETURN_IF_ERROR(check_group(request));  // may end the agreement
  }
  return agreed_.has_value() ? absl::OkStatus() : set_up(request, schema, training, may_restore);
}

absl::Status RunAgreement::compare(const proto::JoinRequest& request, const Schema& schema,
                                   const Training& training) const {
  const std::string worker = fmt::format("at worker {}", request.member().task_index());
  const Sides sides = {.ours = "in the run", .theirs = worker};
  // The most frequent mistake, another model, is reported first.
  if (const std::string differs = difference(agreed().schema, schema, sides); !differs.empty()) {
    return absl::FailedPreconditionError(
        fmt::format("schema mismatch: {}: start all workers with the same model and fragments", differs));
  }
  if (const std::string differs = difference(agreed().training, training, sides); !differs.empty()) {
    return absl::FailedPreconditionError(
        fmt::format("training options differ: {}: start all workers with the same options", differs));
  }
  if (request.first_shard() != agreed().first_shard || request.total_shards() != agreed().map.shard_count()) {
    return absl::FailedPreconditionError(
        fmt::format("this ps task holds shards {}.. of {} here, {}.. of {} there: are the ps_hosts lists the same?",
                    agreed().first_shard, agreed().map.shard_count(), request.first_shard(), request.total_shards()));
  }
  return absl::OkStatus();
}

absl::Status RunAgreement::set_up(const proto::JoinRequest& request, const Schema& schema, const Training& training,
                                  bool may_restore) {
  GRADRAIL_CHECK(!agreed_.has_value());
  GRADRAIL_ASSIGN_OR_RETURN(ShardMap map, cut(request, schema, training, context_.shards.size()));
  const ModelMemory memory{.elements = elements_here(map, request.first_shard(), context_.shards.size()),
                           .vectors = 1 + static_cast<uint64_t>(state_vectors(training.optimizer.kind))};
  // Parameters in GPU memory have other limits.
  if (context_.options.device == "host") GRADRAIL_RETURN_IF_ERROR(check_memory(memory));
  absl::StatusOr<std::shared_ptr<const Checkpoint>> restored = std::shared_ptr<const Checkpoint>();
  std::optional<int64_t> parent_base;
  if (Parent* const parent = context_.options.parent.get(); parent != nullptr) {
    GRADRAIL_ASSIGN_OR_RETURN(Parent::Joined joined, parent->join(schema, training, map));
    parent_base = joined.run_base;
    restored = std::move(joined.parameters);
  } else if (may_restore) {
    restored = without_exceptions(
        fmt::format("the checkpoint of a model of {} values", layout_of(schema).elements * memory.vectors),
        [&] { return restore(request, schema, training); });
  }
  // The check precedes the change of any shard.
  if (!restored.ok()) return restored.status();
  // A failure leaves no agreement, so that the next join sets all shards up again (invariant 1).
  for (uint32_t i = 0; i < context_.shards.size(); ++i) {
    const absl::Status set_up = context_.shards[i].set_up({.shard_index = request.first_shard() + i,
                                                           .map = map,
                                                           .mode = training.mode,
                                                           .optimizer = optimizer_of_run(training),
                                                           .push = training.push,
                                                           .returns = training.returns,
                                                           .restored = *restored});
    if (absl::IsResourceExhausted(set_up)) return too_large(memory, message_of(set_up));
    GRADRAIL_RETURN_IF_ERROR(set_up);
  }
  if (*restored != nullptr) {
    const CheckpointHeader& header = (*restored)->header;
    began_from_ = {.global_step = header.global_step, .saved_us = header.saved_us};
    restored_run_ = header.run;
  }
  agreed_ = {.schema = schema,
             .training = training,
             .map = std::move(map),
             .first_shard = request.first_shard(),
             .group = request.group(),
             .newcomer = has_position(request) ? std::nullopt : std::optional(request.member().task_index()),
             .run_base = parent_base && !has_position(request) ? *parent_base : base_of(request, training.mode),
             .run = first_known({request.run(), restored_run_, request.group()})};
  std::vector<WorkerIndex> departed;
  {
    MutexLock lock(context_.state.mutex);
    // Restored parameters need no chief that initializes them: an absent worker is awaited for a limited time.
    if (*restored != nullptr) context_.state.membership.mark_initialised(Clock::now());
    departed = context_.state.membership.departed();
  }
  // Shards that are set up expect every worker again, also those that finished before.
  context_.shards.stop_expecting(departed);
  publish(request);
  return absl::OkStatus();
}

void RunAgreement::publish(const proto::JoinRequest& request) {
  auto copy = std::make_shared<const proto::JoinRequest>(request);
  MutexLock lock(context_.state.mutex);
  context_.state.run = {.generation = context_.state.run.generation + 1,
                        .agreed = std::move(copy),
                        .run_base = agreed().run_base,
                        .run = agreed().run,
                        .began_from = began_from_};
}

absl::StatusOr<std::shared_ptr<const Checkpoint>> RunAgreement::restore(const proto::JoinRequest& request,
                                                                        const Schema& schema,
                                                                        const Training& training) const {
  const std::string& folder = context_.options.checkpoint_dir;
  const proto::BeganFrom& others = request.begin_from();
  // The others began from nothing: a checkpoint here would give this task other parameters.
  if (folder.empty() || (request.has_begin_from() && !others.has_global_step())) return nullptr;
  const ExpectedContent expected = {.schema = schema, .optimizer = training.optimizer.kind, .run = request.run()};
  absl::StatusOr<std::shared_ptr<const Checkpoint>> restored =
      request.has_begin_from() ? restore_set(folder, {others.global_step(), others.saved_us()}, expected)
                               : restore_newest(folder, expected);
  if (!restored.ok() && has_position(request) && !request.has_begin_from()) {
    // A run under way has its parameters: continuing with those of the chief is better than an abort.
    log_warning("no checkpoint is restored: {}", std::string(message_of(restored.status())));
    return nullptr;
  }
  if (restored.ok() && *restored != nullptr && context_.options.console) {
    context_.options.console(fmt::format("restored global step {} from {}", (*restored)->header.global_step, folder));
  }
  return restored;
}

absl::Status RunAgreement::check_group(const proto::JoinRequest& request) {
  if (request.group() == agreed().group) {
    const bool returns = has_position(request) && request.left_group() != request.group();
    // Only a worker of the former group has the position of the run.
    return returns && agreed().newcomer.has_value() ? follow_returned(request) : absl::OkStatus();
  }
  const bool comes_from_here = request.has_left_group() &&
                               (request.left_group() == agreed().group || past_groups_.contains(request.left_group()));
  bool has_no_members = false;
  {
    MutexLock lock(context_.state.mutex);
    has_no_members = !context_.state.membership.expects_members();
  }
  // A request that names a past group is late: its worker has not yet found the present processes.
  if (has_no_members || (comes_from_here && !past_groups_.contains(request.group()))) {
    begin_again();
    return absl::OkStatus();
  }
  return absl::OutOfRangeError(
      "this ps task and the worker have found different groups of parameter servers: their server lists differ, or a "
      "server has just restarted");
}

/// Takes the position of a returned worker. A newcomer has set up this task before the workers that have the position
/// of the run. Workers that began with the wrong base receive the right one with their next heartbeat.
absl::Status RunAgreement::follow_returned(const proto::JoinRequest& request) {
  GRADRAIL_CHECK(agreed().newcomer.has_value());
  // The newcomer did not have the number of the run, and any set was right for it.
  if (restored_run_ != 0 && request.run() != 0 && restored_run_ != request.run()) {
    return absl::FailedPreconditionError(
        fmt::format("this ps task has restored step {} of another run from {} (give it the folder of this run, and "
                    "start it again)",
                    began_from_.global_step.value_or(0), context_.options.checkpoint_dir));
  }
  // The chief's values are taken if there is no checkpoint. If the newcomer is the chief, the run does begin at its
  // start.
  const bool newcomer_decides = !began_from_.global_step.has_value() &&
                                (*agreed().newcomer < request.member().task_index() || context_.shards.have_values());
  if (newcomer_decides) return absl::OkStatus();
  agreed_->newcomer.reset();
  set_run(first_known({request.run(), agreed().run}), base_of(request, mode()));
  return absl::OkStatus();
}

/// Makes all tasks return to one checkpoint, or to the start: a ps of this run was lost and restarted without its
/// parameters.
void RunAgreement::begin_again() {
  constexpr const char* kCause = "a parameter server was lost, and all parameter servers restart from one checkpoint";
  std::vector<Membership::Member> members;
  {
    ControlState& state = context_.state;
    MutexLock lock(state.mutex);
    members = state.membership.live();
    for (const auto& [worker, incarnation] : members)
      state.membership.mark_away(worker, incarnation, kCause, Clock::now());
    state.membership.on_servers_back(Clock::now());
  }
  context_.state.changed.notify_all();
  log_warning("{}", kCause);
  // Fenced and not removed: a removal would apply steps without these members before they return.
  for (const Membership::Member& member : members) context_.shards.fence(member);
  // A late join of this group must not restore it (invariant 2).
  past_groups_.insert(agreed().group);
  reset();
}

/// Depends on what was restored, and on whether the worker has just begun or returns from a lost ps.
int64_t RunAgreement::base_of(const proto::JoinRequest& request, Mode mode) const {
  // Only synchronous modes number their steps by the version.
  if (!mode.sums()) return 0;
  if (!has_position(request)) return static_cast<int64_t>(began_from_.global_step.value_or(0));
  // Versions without a checkpoint count from 0 again, and the run continues at the position of the first worker.
  return began_from_.global_step.has_value() ? request.run_base() : -static_cast<int64_t>(request.position());
}

}  // namespace gradrail::ps
