#include "tests/ps/prove/world.h"

#include <algorithm>

namespace gradrail::ps::prove {
namespace {

using Kind = Event::Kind;

Membership::Options membership_options(const Config& config) {
  return {.worker_names = std::vector<std::string>(config.mode.worker_count, "w")};
}

}  // namespace

World::World(const Config& config) : config_(&config), faults_(config.faults) {
  const uint32_t worker_count = config.mode.worker_count;
  const Port port{.lanes = std::vector<Lane>(config.buckets)};
  const Side side{.protocol = ShardProtocol(config.mode, config.buckets, config.is_initialised, 0),
                  .membership = Membership(membership_options(config)),
                  .ledger = ShardLedger(config),
                  .ports = std::vector<Port>(worker_count, port)};
  workers_.assign(worker_count, Worker{.servers = std::vector<Worker::Connection>(
                                           config.servers, {.buckets = std::vector<Worker::Bucket>(config.buckets)})});
  for (uint8_t index = 0; index < config.servers; ++index) {
    Server& server = servers_.emplace_back();
    server.sides.assign(config.has_backup ? 2 : 1, side);
    server.sides[0].is_serving = true;
    server.link.transfers.resize(config.buckets);
    server.link.acknowledgements.resize(config.buckets);
    server.seen_versions.resize(config.buckets);
    for (WorkerIndex worker = 0; worker < worker_count; ++worker) {
      admit(worker, index, 0);
      connect(worker, index, 0);
    }
    if (config.has_backup) open_link(index);
  }
  for (WorkerIndex worker = 0; worker < worker_count; ++worker) start(worker);
}

void World::fail(std::string_view what) {
  if (violation_.empty()) violation_ = what;
}

std::vector<Event> World::events() const {
  std::vector<Event> events;
  for (WorkerIndex worker = 0; worker < workers_.size(); ++worker) add_worker_events(worker, events);
  for (uint8_t server = 0; server < server_count(); ++server) add_window_events(server, events);
  for (uint8_t server = 0; server < server_count(); ++server) add_link_events(server, events);
  if (!reduce(events)) add_fault_events(events);
  return events;
}

/// Keeps a persistent set of `events`, if a small one is known. Events of different lanes commute. A lane is one bucket
/// of one server, with its windows and the pushes, copies and answers of all workers there. An event of another lane
/// enables an event of this lane in two ways only. A worker begins its next step, or its bucket gets a place. A worker
/// with an unanswered bucket that has its place in this lane needs an event of this lane for both. When this holds for
/// each worker, the events of this lane are a persistent set. Without faults, joins, departures and a backup there are
/// no other events. Each event consumes a message or a timer, so that no cycle can postpone the other lanes forever.
bool World::reduce(std::vector<Event>& events) const {
  if (faults_.any() || config_->has_backup || events.empty()) return false;
  const auto is_in_lane = [](const Event& event) {
    return event.kind == Kind::deliver_push || event.kind == Kind::deliver_answer || event.kind == Kind::deliver_copy ||
           event.kind == Kind::end_window;
  };
  if (!std::all_of(events.begin(), events.end(), is_in_lane)) return false;
  const auto place =
      std::find_if_not(events.begin(), events.end(), [](const Event& event) { return event.is_fault(); });
  if (place == events.end()) return false;
  const Event first = *place;
  const auto stays = [&](const Worker& worker) {
    if (worker.phase == Worker::Phase::gone || worker.phase == Worker::Phase::killed) return true;
    return worker.exchanges() && !worker.servers[first.server].buckets[first.bucket].is_answered &&
           has_place(worker, first.server, first.bucket);
  };
  if (!std::all_of(workers_.begin(), workers_.end(), stays)) return false;
  std::erase_if(events,
                [&](const Event& event) { return event.server != first.server || event.bucket != first.bucket; });
  return true;
}

void World::add_worker_events(WorkerIndex index, std::vector<Event>& events) const {
  const Worker& worker = workers_[index];
  const auto w = static_cast<uint8_t>(index);
  for (uint8_t server = 0; server < server_count(); ++server) add_lane_events(index, server, events);
  for (uint8_t server = 0; server < server_count(); ++server) add_connection_events(index, server, events);
  if (worker.phase != Worker::Phase::joining) return;
  for (uint8_t server = 0; server < server_count(); ++server) {
    if (worker.servers[server].has_joined) continue;
    if (may_join(index, server)) events.push_back({.kind = Kind::join, .worker = w, .server = server});
    return;  // in the order of the servers
  }
  for (uint8_t server = 0; server < server_count(); ++server) {
    if (serving_side(server) < 0) return;
  }
  events.push_back({.kind = Kind::start, .worker = w});
}

void World::add_lane_events(WorkerIndex index, uint8_t server, std::vector<Event>& events) const {
  const auto w = static_cast<uint8_t>(index);
  for (uint8_t side = 0; side < side_count(); ++side) {
    const Side& shard = servers_[server].sides[side];
    if (!shard.is_running) continue;
    for (uint8_t bucket = 0; bucket < config_->buckets; ++bucket) {
      const Lane& lane = shard.ports[index].lanes[bucket];
      if (lane.push) events.push_back({Kind::deliver_push, w, server, side, bucket});
      const auto copy_count = static_cast<uint8_t>(lane.copies.size());
      for (uint8_t i = 0; i < copy_count; ++i) events.push_back({Kind::deliver_copy, w, server, side, bucket, i});
    }
  }
  // An answer that left a shard may arrive after the loss of that shard.
  for (uint8_t side = 0; side < side_count(); ++side) {
    for (uint8_t bucket = 0; bucket < config_->buckets; ++bucket) {
      const Lane& lane = servers_[server].sides[side].ports[index].lanes[bucket];
      if (!lane.answers.empty()) events.push_back({Kind::deliver_answer, w, server, side, bucket});
    }
  }
}

void World::add_connection_events(WorkerIndex index, uint8_t server, std::vector<Event>& events) const {
  const Worker& worker = workers_[index];
  const Worker::Connection& connection = worker.servers[server];
  Event event{.worker = static_cast<uint8_t>(index), .server = server};
  const auto add = [&](Kind kind, int side) {
    event.kind = kind;
    event.side = static_cast<uint8_t>(side);
    events.push_back(event);
  };
  const auto& sides = servers_[server].sides;
  for (int side = 0; side < static_cast<int>(sides.size()); ++side) {
    if (!sides[side].is_running) continue;
    if (sides[side].ports[index].is_open && connection.side != side) add(Kind::shard_closes, side);
    const uint64_t member = sides[side].ledger.members[index];
    if (sides[side].is_serving && member != 0 && !is_present(index, member, server)) add(Kind::notice_loss, side);
  }
  if (connection.side >= 0 && !sides[connection.side].ports[index].is_open) add(Kind::worker_closes, connection.side);
  const int serving = serving_side(server);
  if (worker.exchanges() && connection.side < 0) {
    for (int side = 0; side < static_cast<int>(sides.size()); ++side) {
      // A worker that does not know of the takeover may return to the former primary.
      if (!sides[side].is_running || !sides[side].is_serving) continue;
      if (sides[side].ledger.is_member(index, worker.incarnation)) {
        add(Kind::reconnect, side);
      } else if (side == serving && may_join(index, server)) {
        add(Kind::rejoin, side);
      }
    }
    const bool has_backup = sides.size() > 1 && sides[1].is_running && !sides[1].is_serving;
    const Link& link = servers_[server].link;
    if (has_backup && link.is_level && (!sides[0].is_running || !link.is_open_at_backup)) add(Kind::take_over, 1);
  }
  if (worker.phase != Worker::Phase::leaving || connection.has_left) return;
  if (serving >= 0 && config_->marks_finished && !connection.has_finished) return add(Kind::finish, serving);
  add(Kind::leave, std::max(serving, 0));
}

void World::add_window_events(uint8_t server, std::vector<Event>& events) const {
  for (uint8_t side = 0; side < side_count(); ++side) {
    const Side& shard = servers_[server].sides[side];
    for (uint8_t bucket = 0; shard.is_running && bucket < config_->buckets; ++bucket) {
      if (shard.ledger.has_window(bucket)) events.push_back({Kind::end_window, 0, server, side, bucket});
    }
  }
}

void World::add_link_events(uint8_t server, std::vector<Event>& events) const {
  if (!config_->has_backup) return;
  const Link& link = servers_[server].link;
  const Side& primary = servers_[server].sides[0];
  const Side& backup = servers_[server].sides[1];
  const auto add = [&](Kind kind, uint8_t bucket = 0) {
    events.push_back({.kind = kind, .server = server, .bucket = bucket});
  };
  if (primary.is_running && backup.is_running && backup.is_serving) add(Kind::stop_replaced);
  if (primary.is_running && link.progress) {
    const bool is_unreported = link.progress->phase() == BackupProgress::Phase::level && !link.is_broken;
    // A turn of the loop without work changes nothing.
    AnswerGate gate = link.gate;
    if (link.progress->has_next() || link.progress->is_level_unannounced() ||
        (is_unreported && gate.report_level(*link.progress)))
      add(Kind::advance);
    if (link.is_broken) add(Kind::primary_notices);
  }
  if (backup.is_running && link.is_open_at_backup && link.is_broken) add(Kind::backup_notices);
  for (uint8_t bucket = 0; bucket < config_->buckets; ++bucket) {
    if (link.transfers[bucket] && link.is_open_at_backup && backup.is_running) add(Kind::deliver_bucket, bucket);
    if (link.acknowledgements[bucket] && primary.is_running && link.progress)
      add(Kind::deliver_acknowledgement, bucket);
  }
  if (link.level_message && link.is_open_at_backup && backup.is_running) add(Kind::deliver_level);
  if (!primary.is_running || backup.is_serving) return;
  if (!backup.is_running) {
    if (link.progress || link.gate.is_unsure()) add(Kind::detach);
    return;
  }
  const auto known = primary.membership.known_members();
  const auto is_same = [](const Membership::Known& a, const Membership::Known& b) {
    return a.worker == b.worker && a.incarnation == b.incarnation && a.departed == b.departed;
  };
  if (!std::equal(known.begin(), known.end(), link.known.begin(), link.known.end(), is_same)) add(Kind::mirror);
  if (link.is_broken && !link.is_expected) add(Kind::expect_primary);
  if (link.is_expected) add(Kind::welcome);
}

void World::add_fault_events(std::vector<Event>& events) const {
  const auto worker_count = static_cast<uint8_t>(workers_.size());
  for (uint8_t w = 0; w < worker_count; ++w) {
    const Worker& worker = workers_[w];
    const bool is_alive = worker.phase != Worker::Phase::gone && worker.phase != Worker::Phase::killed;
    // Before the first values the chief is needed: a run without it waits for its return.
    const bool may_go = w != 0 || config_->is_initialised;
    if (is_alive && faults_.restarts > 0) events.push_back({.kind = Kind::restart, .worker = w});
    if (is_alive && faults_.kills > 0 && may_go) events.push_back({.kind = Kind::kill, .worker = w});
    for (uint8_t s = 0; s < server_count(); ++s) {
      const int side = worker.servers[s].side;
      if (side < 0 || !worker.exchanges()) continue;
      const Side& shard = servers_[s].sides[side];
      const Port& port = shard.ports[w];
      if (!shard.is_running || !port.is_open) continue;
      const auto end = static_cast<uint8_t>(side);
      if (faults_.disconnects > 0) {
        events.push_back({Kind::worker_end_fails, w, s, end});
        events.push_back({Kind::shard_end_fails, w, s, end});
      }
      if (faults_.removals > 0) events.push_back({Kind::remove, w, s, end});
      if (faults_.forgeries > 0 && worker.phase == Worker::Phase::running) {
        events.push_back({Kind::forge, w, s, end});
        if (worker.incarnation > 1 && !config_->has_backup) events.push_back({Kind::join_too_late, w, s, end});
      }
      for (uint8_t b = 0; b < config_->buckets; ++b) {
        if (faults_.copies > 0 && port.lanes[b].push) events.push_back({Kind::copy, w, s, end, b});
      }
    }
  }
  for (uint8_t s = 0; s < server_count() && faults_.old_windows > 0; ++s) {
    for (uint8_t side = 0; side < side_count(); ++side) {
      const Side& shard = servers_[s].sides[side];
      for (uint8_t b = 0; shard.is_running && shard.is_serving && b < config_->buckets; ++b) {
        if (shard.protocol.version(b) > 0) events.push_back({Kind::end_old_window, 0, s, side, b});
      }
    }
  }
  if (!config_->has_backup) return;
  for (uint8_t s = 0; s < server_count(); ++s) {
    const auto& sides = servers_[s].sides;
    const Link& link = servers_[s].link;
    const auto add = [&](Kind kind) { events.push_back({.kind = kind, .server = s}); };
    if (faults_.primary_losses > 0 && sides[0].is_running) add(Kind::lose_primary);
    if (faults_.backup_losses > 0 && sides[1].is_running && !sides[1].is_serving) add(Kind::lose_backup);
    if (faults_.link_losses > 0 && link.progress && link.is_open_at_backup && !link.is_broken) add(Kind::lose_link);
    if (faults_.full_queues > 0 && sides[0].is_running && link.progress && link.progress->has_next() &&
        !link.progress->is_filled())
      add(Kind::fill_without_room);
  }
}

std::string World::incomplete() const {
  for (uint8_t server = 0; server < server_count(); ++server) {
    // Without a level backup a lost primary is restarted from a checkpoint. That begins another run.
    if (serving_side(server) < 0) return "";
  }
  for (WorkerIndex worker = 0; worker < workers_.size(); ++worker) {
    const Worker::Phase phase = workers_[worker].phase;
    if (phase != Worker::Phase::gone && phase != Worker::Phase::killed)
      return "worker " + std::to_string(worker) + " waits at step " + std::to_string(workers_[worker].step) +
             " and no event can help it";
  }
  return "";
}

void World::run(const Event& event) {
  switch (event.kind) {
    case Kind::deliver_push:
    case Kind::deliver_copy:
    case Kind::copy:
      return deliver(event);
    case Kind::forge:
    case Kind::join_too_late:
      return forge(event);
    case Kind::deliver_answer:
      return on_answer(event.worker, event);
    case Kind::end_window:
    case Kind::end_old_window:
      return end_window(event);
    case Kind::finish:
    case Kind::leave:
    case Kind::notice_loss:
    case Kind::remove:
      return depart(event);
    case Kind::shard_closes:
      return close_port(event.server, event.side, event.worker);
    case Kind::worker_closes:
    case Kind::reconnect:
    case Kind::rejoin:
    case Kind::join:
    case Kind::start:
    case Kind::worker_end_fails:
    case Kind::shard_end_fails:
    case Kind::restart:
    case Kind::kill:
      return run_worker_event(event);
    default:
      return run_link_event(event);
  }
}

}  // namespace gradrail::ps::prove
