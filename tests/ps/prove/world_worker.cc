// The workers: what worker/client does, without transports.
#include <algorithm>
#include <utility>

#include "tests/ps/prove/world.h"

namespace gradrail::ps::prove {
namespace {

using Kind = Event::Kind;

constexpr uint64_t kOpeningStep = 0;
/// A base ahead of the bucket has the staleness 0.
constexpr uint64_t kNoBase = UINT64_MAX;

}  // namespace

int World::serving_side(uint8_t server) const {
  const auto& sides = servers_[server].sides;
  for (int side = static_cast<int>(sides.size()); side-- > 0;) {
    if (sides[side].is_running && sides[side].is_serving) return side;
  }
  return -1;
}

bool World::is_present(WorkerIndex index, uint64_t incarnation, uint8_t server) const {
  const Worker& worker = workers_[index];
  if (worker.incarnation != incarnation) return false;
  if (worker.phase == Worker::Phase::gone || worker.phase == Worker::Phase::killed) return false;
  return !worker.servers[server].has_left;
}

bool World::may_join(WorkerIndex index, uint8_t server) const {
  const int side = serving_side(server);
  if (side < 0) return false;
  if (!config_->has_backup) return true;
  Membership membership = servers_[server].sides[side].membership;
  return membership.join(index, workers_[index].incarnation, "w", kNow).ok();
}

/// `repeats`: as Exchange::repeat_late(), a further step for the late gradients.
void World::begin_step(WorkerIndex index, Worker::Phase phase, uint64_t step, bool repeats) {
  Worker& worker = workers_[index];
  worker.phase = phase;
  worker.step = step;
  worker.was_dropped = false;
  for (Worker::Connection& connection : worker.servers) {
    for (Worker::Bucket& bucket : connection.buckets) {
      bucket.is_absent = repeats && !bucket.is_late;
      bucket.is_answered = bucket.is_late = false;
    }
  }
  for (uint8_t server = 0; server < server_count(); ++server) {
    for (uint8_t bucket = 0; bucket < config_->buckets; ++bucket) send(index, server, bucket);
  }
}

/// As Exchange::push_bucket(): the bucket before it at a common place has been answered.
bool World::has_place(const Worker& worker, uint8_t server, uint8_t bucket) const {
  return !config_->shares_place || bucket == 0 || worker.servers[server].buckets[bucket - 1].is_answered;
}

void World::send(WorkerIndex index, uint8_t server, uint8_t bucket) {
  const Worker& worker = workers_[index];
  if (!has_place(worker, server, bucket)) return;  // on_answer() sends it
  const Worker::Connection& connection = worker.servers[server];
  if (connection.side < 0) return;  // connect() repeats it
  Port& port = servers_[server].sides[connection.side].ports[index];
  if (!port.is_open) return;  // lost on the way
  Push push{.incarnation = worker.incarnation,
            .kind = ArrivalKind::push,
            .step = worker.step,
            .base_version = config_->counts_staleness ? connection.buckets[bucket].seen_version : kNoBase};
  if (connection.buckets[bucket].is_absent) push.kind = ArrivalKind::absent;
  const bool offers = index == 0 && !config_->is_initialised;
  if (worker.phase == Worker::Phase::opening) push.kind = offers ? ArrivalKind::initialise : ArrivalKind::pull;
  if (port.lanes[bucket].push) return fail("a second push of a bucket is on its way: the flow control is broken");
  port.lanes[bucket].push = push;
}

/// A new connection of a member. It retires the former one.
void World::connect(WorkerIndex index, uint8_t server, int side) {
  close_port(server, static_cast<uint8_t>(side), index);
  Worker& worker = workers_[index];
  Port& port = servers_[server].sides[side].ports[index];
  port.is_open = true;
  port.incarnation = worker.incarnation;
  // Copies from the former connection of this process do not arrive any more.
  for (Lane& lane : port.lanes) {
    std::erase_if(lane.copies, [&](const Push& copy) { return copy.incarnation == worker.incarnation; });
  }
  worker.servers[server].side = side;
  if (!worker.exchanges()) return;
  for (uint8_t bucket = 0; bucket < config_->buckets; ++bucket) {
    if (!worker.servers[server].buckets[bucket].is_answered) send(index, server, bucket);
  }
}

void World::on_answer(WorkerIndex index, const Event& event) {
  std::vector<Answer>& answers = servers_[event.server].sides[event.side].ports[index].lanes[event.bucket].answers;
  const Answer answer = answers.front();
  answers.erase(answers.begin());
  Worker& worker = workers_[index];
  Worker::Bucket& bucket = worker.servers[event.server].buckets[event.bucket];
  if (!worker.exchanges() || answer.step != worker.step || bucket.is_answered) return;  // a repeated answer
  if (answer.version < bucket.seen_version) return fail("a worker sees versions go back");
  bucket.is_answered = true;
  bucket.seen_version = answer.version;
  bucket.next_step = answer.next_step;
  uint64_t& seen = servers_[event.server].seen_versions[event.bucket];
  seen = std::max(seen, answer.version);
  if (answer.dropped) {
    worker.was_dropped = true;
    bucket.is_late = config_->mode.kind == ModeKind::quorum && !config_->mode.drops_late && !bucket.is_absent;
  } else if (worker.phase == Worker::Phase::running) {
    bucket.acknowledged_step = answer.step;
  }
  const auto next = static_cast<uint8_t>(event.bucket + 1);
  if (config_->shares_place && next < config_->buckets) send(index, event.server, next);
  complete_step(index);
}

void World::complete_step(WorkerIndex index) {
  Worker& worker = workers_[index];
  uint64_t lowest = UINT64_MAX, next_step = UINT64_MAX;
  bool is_late = false;
  for (const Worker::Connection& connection : worker.servers) {
    for (const Worker::Bucket& bucket : connection.buckets) {
      if (!bucket.is_answered) return;
      is_late = is_late || bucket.is_late;
      lowest = std::min(lowest, bucket.seen_version);
      next_step = std::min(next_step, bucket.next_step);
    }
  }
  if (is_late) return begin_step(index, worker.phase, std::max(worker.step, lowest) + 1, /*repeats=*/true);
  if (worker.phase == Worker::Phase::opening) {
    // As Exchange::raise_first_step(): the others have gone on since the join.
    if (config_->mode.sums()) next_step = lowest + 1;
    if (config_->mode.waits()) worker.first_step = std::max(worker.first_step, next_step);
    return begin_running(index);
  }
  // As Exchange::catch_up(): an earlier step would be dropped again.
  const uint64_t done = worker.was_dropped ? std::max(worker.step, lowest) : worker.step;
  if (done < config_->steps) return begin_step(index, Worker::Phase::running, done + 1);
  worker.phase = Worker::Phase::leaving;
  worker.was_dropped = false;
}

void World::begin_running(WorkerIndex index) {
  Worker& worker = workers_[index];
  if (worker.first_step <= config_->steps) return begin_step(index, Worker::Phase::running, worker.first_step);
  worker.phase = Worker::Phase::leaving;
}

/// The connection of a former incarnation stays open until either end closes it.
void World::join(WorkerIndex index, uint8_t server) {
  admit(index, server, static_cast<uint8_t>(serving_side(server)));
  workers_[index].servers[server].has_joined = true;
}

/// The first exchange of an incarnation that has joined all servers. The world begins here as well.
void World::start(WorkerIndex index) {
  Worker& worker = workers_[index];
  uint64_t lowest = UINT64_MAX;
  for (uint8_t server = 0; server < server_count(); ++server) {
    const int side = serving_side(server);
    lowest = std::min(lowest, servers_[server].sides[side].protocol.next_step());
    // A backup that took over after the join may not have this member yet. The worker then joins again.
    if (worker.servers[server].side < 0 && servers_[server].sides[side].ledger.is_member(index, worker.incarnation)) {
      connect(index, server, side);
    }
  }
  // The replies to the joins name the steps. For a run that advances meanwhile they are those of the last reply.
  worker.first_step = config_->mode.waits() ? lowest : 1;
  // A worker opens with a pull. The first incarnations begin with the world: the answer decides nothing, once there are
  // values.
  const bool opens =
      !config_->is_initialised || (worker.incarnation > 1 && (config_->has_backup || config_->mode.waits()));
  if (opens) return begin_step(index, Worker::Phase::opening, kOpeningStep);
  begin_running(index);
}

/// The process ends. Answers on the way to it are lost.
void World::stop(WorkerIndex index, Worker::Phase phase) {
  Worker& worker = workers_[index];
  worker.phase = phase;
  worker.step = 0;
  worker.first_step = 1;
  worker.was_dropped = false;
  for (uint8_t server = 0; server < server_count(); ++server) {
    worker.servers[server] = {
        .side = -1, .has_joined = false, .buckets = std::vector<Worker::Bucket>(config_->buckets)};
    for (Side& side : servers_[server].sides) {
      for (Lane& lane : side.ports[index].lanes) lane.answers.clear();
    }
  }
}

void World::run_worker_event(const Event& event) {
  Worker& worker = workers_[event.worker];
  Side& shard = servers_[event.server].sides[event.side];
  switch (event.kind) {
    case Kind::worker_end_fails:
      --faults_.disconnects;
      [[fallthrough]];
    case Kind::worker_closes:
      worker.servers[event.server].side = -1;
      for (Lane& lane : shard.ports[event.worker].lanes) lane.answers.clear();
      return;
    case Kind::shard_end_fails:
      --faults_.disconnects;
      return close_port(event.server, event.side, event.worker);
    case Kind::rejoin:
      admit(event.worker, event.server, event.side);
      return connect(event.worker, event.server, event.side);
    case Kind::reconnect:
      if (config_->has_backup && !shard.membership.heard(event.worker, worker.incarnation, kNow).ok())
        return fail("a member of the shard is none of the membership");
      // As Exchange::lower_first_step(): the backup may lack the step that its primary has named.
      if (event.side == 1 && worker.phase == Worker::Phase::opening && config_->mode.waits())
        worker.first_step = std::min(worker.first_step, shard.protocol.next_step());
      return connect(event.worker, event.server, event.side);
    case Kind::join:
      return join(event.worker, event.server);
    case Kind::start:
      return start(event.worker);
    case Kind::restart:
      --faults_.restarts;
      stop(event.worker, Worker::Phase::joining);
      ++worker.incarnation;
      return;
    default:
      --faults_.kills;
      return stop(event.worker, Worker::Phase::killed);
  }
}

}  // namespace gradrail::ps::prove
