// A shard around its protocol: what PeerTable and ShardExchange do.
#include <algorithm>
#include <utility>

#include "fmt/format.h"
#include "tests/ps/prove/state_reader.h"
#include "tests/ps/prove/world.h"
#include "tests/ps/shard/lone_push.h"

namespace gradrail::ps::prove {
namespace {

using Kind = Event::Kind;

/// A primary must not show a state in an answer that a backup lacks which may take over, or has taken over.
std::string check_durable(const Server& server, const Action& action) {
  const Side& backup = server.sides[1];
  if (!backup.is_running || (!backup.is_serving && !server.link.is_level)) return "";
  const uint64_t version =
      backup.is_serving ? server.taken_versions[action.bucket] : backup.ledger.buckets[action.bucket].version;
  if (action.version > version)
    return backup.is_serving ? "two primaries acknowledge" : "an answer left before the backup had its state";
  const uint64_t incarnation = server.sides[0].ledger.members[action.worker];
  if (action.step == 0 || action.dropped ||
      backup.ledger.has_applied(action.worker, incarnation, action.bucket, action.step))
    return "";
  return "an update was acknowledged that the backup lacks";
}

/// quorum: the slots of a bucket hold what its next step needs.
bool has_enough(const Side& shard, uint32_t bucket, const Mode& mode) {
  const uint64_t step = shard.ledger.buckets[bucket].version + 1;
  size_t push_count = 0, absent_count = 0, expected_count = 0;
  for (WorkerIndex worker = 0; worker < shard.ports.size(); ++worker) {
    if (!shard.ledger.expected[worker]) continue;
    ++expected_count;
    const std::optional<Push>& slot = shard.ports[worker].lanes[bucket].slot;
    if (!slot || !shard.ledger.is_member(worker, slot->incarnation)) continue;
    if (slot->kind == ArrivalKind::push && slot->step == step) ++push_count;
    if (slot->kind == ArrivalKind::absent && slot->step >= step) ++absent_count;
  }
  return push_count > 0 && push_count + absent_count >= std::min<size_t>(mode.bound, expected_count);
}

}  // namespace

void World::deliver(const Event& event) {
  Side& shard = servers_[event.server].sides[event.side];
  Port& port = shard.ports[event.worker];
  Lane& lane = port.lanes[event.bucket];
  Push push;
  if (event.kind == Kind::deliver_copy) {
    push = lane.copies[event.index];
    lane.copies.erase(lane.copies.begin() + event.index);
    // Nothing arrives over a closed connection of this process. A copy of a former process may arrive.
    if (!port.is_open && shard.ledger.members[event.worker] == push.incarnation) return;
  } else {
    push = *lane.push;
    lane.push.reset();
    // The ledger sees the slot of an absent worker, too; it holds no payload.
    if (push.kind != ArrivalKind::pull) lane.slot = push;
    if (event.kind == Kind::copy) {
      --faults_.copies;
      lane.copies.push_back(push);
    }
  }
  if (is_of_step(push.kind) && shard.ledger.is_member(event.worker, push.incarnation)) {
    uint64_t& arrived = shard.ledger.buckets[event.bucket].workers[event.worker].arrived;
    arrived = std::max(arrived, push.step);
  }
  if (shard.ledger.is_member(event.worker, push.incarnation))
    shard.ledger.arrive(event.worker, !workers_[event.worker].servers[event.server].has_finished);
  const Arrival arrival = {.worker = event.worker,
                           .incarnation = push.incarnation,
                           .kind = push.kind,
                           .bucket = event.bucket,
                           .step = push.step,
                           .base_version = push.base_version};
  std::optional<ShardProtocol> short_way;
  if (push.kind == ArrivalKind::push) short_way = shard.protocol;
  Actions actions;
  shard.protocol.on_arrival(arrival, actions);
  if (short_way.has_value()) compare_ways(shard.protocol, arrival, actions, *short_way);
  if (!actions.empty() && !shard.ledger.is_member(event.worker, push.incarnation))
    return fail("the push of a non-member had an effect");
  run_actions(event.server, event.side, actions);
}

/// on_lone_push() has the actions and the state of on_arrival(), or leaves the state as it was.
void World::compare_ways(const ShardProtocol& protocol, const Arrival& arrival, const Actions& actions,
                         ShardProtocol& short_way) {
  const auto state_of = [&](const ShardProtocol& one) {
    Bytes state;
    StateReader::write_shared(one, state);
    for (WorkerIndex worker = 0; worker < workers_.size(); ++worker) StateReader::write_worker(one, worker, state);
    return state.text();
  };
  const std::string before = state_of(short_way);
  const std::optional<ShardProtocol::LonePush> lone = short_way.on_lone_push(arrival);
  if (!lone.has_value()) {
    if (state_of(short_way) != before) fail("a push that is no lone one has changed the state");
  } else if (!are_of_lone_push(actions, arrival, *lone) || state_of(short_way) != state_of(protocol)) {
    fail("the short way of a push differs from the general way");
  }
}

/// A push that skips a step must be refused, and its connection ends. The late join of a replaced incarnation must
/// change nothing.
void World::forge(const Event& event) {
  --faults_.forgeries;
  Side& shard = servers_[event.server].sides[event.side];
  if (event.kind == Kind::join_too_late) {
    const uint64_t incarnation = workers_[event.worker].incarnation;
    const bool was_member = shard.protocol.is_member(event.worker, incarnation);
    shard.protocol.add_worker(event.worker, incarnation - 1);
    if (shard.protocol.is_member(event.worker, incarnation) != was_member) fail("a late join displaced its successor");
    return;
  }
  const bool has_finished = workers_[event.worker].servers[event.server].has_finished;
  if (shard.ledger.is_member(event.worker, workers_[event.worker].incarnation))
    shard.ledger.arrive(event.worker, !has_finished);
  Actions actions;
  shard.protocol.on_arrival({.worker = event.worker,
                             .incarnation = workers_[event.worker].incarnation,
                             .kind = ArrivalKind::push,
                             .bucket = 0,
                             .step = config_->steps + 3},
                            actions);
  if (actions.size() != 1 || actions[0].kind != Action::Kind::refuse) return fail("a gap was not refused");
  close_port(event.server, event.side, event.worker);
}

void World::close_port(uint8_t server, uint8_t side, WorkerIndex worker) {
  Side& shard = servers_[server].sides[side];
  Port& port = shard.ports[worker];
  if (!port.is_open) return;
  port.is_open = false;
  for (Lane& lane : port.lanes) {
    lane.push.reset();
    lane.slot.reset();
  }
  if (side == 0) servers_[server].link.gate.forget(worker);
  shard.protocol.reconnect_worker(worker, port.incarnation);
}

void World::admit(WorkerIndex worker, uint8_t server, uint8_t side) {
  Server& task = servers_[server];
  Side& shard = task.sides[side];
  const uint64_t incarnation = workers_[worker].incarnation;
  if (config_->has_backup && !shard.membership.join(worker, incarnation, "w", kNow).ok())
    return fail("a join was refused");
  const bool is_finished = workers_[worker].servers[server].has_finished;
  shard.protocol.add_worker(worker, incarnation);
  shard.ledger.add(worker, incarnation, !is_finished);
  // The join is answered after the backup has its members.
  if (config_->has_backup && side == 0 && !task.sides[1].is_serving) task.link.known = shard.membership.known_members();
}

void World::depart(const Event& event) {
  Server& task = servers_[event.server];
  Worker::Connection& connection = workers_[event.worker].servers[event.server];
  Side& shard = task.sides[event.side];
  const uint64_t incarnation = shard.ledger.members[event.worker];
  Actions actions;
  if (event.kind == Kind::remove) --faults_.removals;
  if (event.kind == Kind::leave) {
    connection.has_left = true;
    connection.side = -1;
    bool has_left_all = true;
    for (const Worker::Connection& each : workers_[event.worker].servers) has_left_all = has_left_all && each.has_left;
    if (has_left_all) stop(event.worker, Worker::Phase::gone);
    // A lost server does not need to be left. Its successor notices the absence.
    if (!shard.is_running || incarnation != workers_[event.worker].incarnation) return;
  }
  if (event.kind == Kind::finish) {
    connection.has_finished = true;
    if (incarnation != workers_[event.worker].incarnation) return;
    shard.ledger.expected[event.worker] = false;
    shard.protocol.mark_worker_finished(event.worker, incarnation, actions);
    return run_actions(event.server, event.side, actions);
  }
  if (event.kind == Kind::leave) {
    shard.membership.leave(event.worker, incarnation);
  } else {
    shard.membership.mark_lost(event.worker, incarnation, "lost", kNow);
  }
  close_port(event.server, event.side, event.worker);
  shard.ledger.remove(event.worker);
  shard.protocol.remove_worker(event.worker, incarnation, actions);
  run_actions(event.server, event.side, actions);
  // A leave is answered after the backup has it. A loss travels with the next message.
  if (config_->has_backup && event.kind == Kind::leave && event.side == 0 && !task.sides[1].is_serving)
    task.link.known = shard.membership.known_members();
}

void World::run_actions(uint8_t server, uint8_t side, const Actions& actions) {
  Side& shard = servers_[server].sides[side];
  Link& link = servers_[server].link;
  for (const Action& action : actions) {
    std::vector<std::optional<Push>> slots;
    slots.reserve(action.contributors.size());
    for (const WorkerIndex worker : action.contributors) slots.push_back(shard.ports[worker].lanes[action.bucket].slot);
    std::vector<WorkerIndex> absent;
    for (WorkerIndex worker = 0; action.kind == Action::Kind::apply && worker < shard.ports.size(); ++worker) {
      const std::optional<Push>& slot = shard.ports[worker].lanes[action.bucket].slot;
      if (slot && slot->kind == ArrivalKind::absent && slot->step >= action.step &&
          shard.ledger.is_member(worker, slot->incarnation)) {
        absent.push_back(worker);
      }
    }
    switch (action.kind) {
      case Action::Kind::initialise:
        fail(shard.ledger.initialise(action, slots));
        if (side == 0 && link.progress) link.progress->record_change(action.bucket);
        break;
      case Action::Kind::apply:
        fail(shard.ledger.apply(action, slots, absent, config_->mode));
        if (side == 0 && link.progress) link.progress->record_change(action.bucket);
        break;
      case Action::Kind::answer:
        fail(shard.ledger.answer(action, config_->mode));
        if (!shard.ports[action.worker].is_open) fail("answered without a connection");
        if (side == 0 && link.gate.hold(action, link.progress ? &*link.progress : nullptr)) break;
        answer(server, side, action);
        break;
      case Action::Kind::refuse:
        fail("a correct worker was refused: " + action.reason);
        break;
      case Action::Kind::begin_window:
        fail(shard.ledger.begin_window(action));
        break;
    }
    if (!violation_.empty()) return;
  }
  check_withheld(server, side);
}

/// ssp: no answer is withheld that is due. A backup may hold answers as well.
void World::check_withheld(uint8_t server, uint8_t side) {
  if (config_->mode.kind != ModeKind::ssp || config_->has_backup) return;
  const Side& shard = servers_[server].sides[side];
  for (WorkerIndex index = 0; index < workers_.size(); ++index) {
    const Worker& worker = workers_[index];
    const Worker::Connection& connection = worker.servers[server];
    const bool is_connected = shard.ports[index].is_open && connection.side == side;
    if (worker.phase != Worker::Phase::running || !is_connected) continue;
    for (uint8_t bucket = 0; bucket < config_->buckets; ++bucket) {
      const Lane& lane = shard.ports[index].lanes[bucket];
      if (connection.buckets[bucket].is_answered || lane.push || !lane.answers.empty()) continue;
      if (!shard.ledger.has_applied(index, worker.incarnation, bucket, worker.step)) continue;
      const std::optional<uint64_t> permitted = shard.ledger.permitted_step(bucket, config_->mode);
      if (permitted.has_value() && worker.step <= *permitted)
        return fail(fmt::format("the answer to worker {} step {} is due and withheld", index, worker.step));
    }
  }
}

void World::end_window(const Event& event) {
  Side& shard = servers_[event.server].sides[event.side];
  const uint64_t version = shard.ledger.buckets[event.bucket].version;
  const bool is_old = event.kind == Kind::end_old_window;
  if (is_old) --faults_.old_windows;
  if (!is_old) shard.ledger.end_window(event.bucket);
  Actions actions;
  shard.protocol.on_window_end(event.bucket, is_old ? version : version + 1, actions);
  run_actions(event.server, event.side, actions);
  const bool is_applied = shard.ledger.buckets[event.bucket].version > version;
  if (is_old && !actions.empty()) fail("the window of an earlier step had an effect");
  if (!is_old && !is_applied && has_enough(shard, event.bucket, config_->mode))
    fail("a step waits after its window has ended");
}

void World::answer(uint8_t server, uint8_t side, const Action& action) {
  Server& task = servers_[server];
  Port& port = task.sides[side].ports[action.worker];
  if (!port.is_open) return;
  if (side == 0 && config_->has_backup) fail(check_durable(task, action));
  // The worker's end may be closed: the answer is then lost.
  if (workers_[action.worker].servers[server].side != side) return;
  port.lanes[action.bucket].answers.push_back(
      {.step = action.step, .version = action.version, .dropped = action.dropped, .next_step = action.next_step});
}

}  // namespace gradrail::ps::prove
