// Primary and backup: what PrimaryRole, BackupRole and the control plane do.
#include <algorithm>
#include <utility>

#include "tests/ps/prove/world.h"

namespace gradrail::ps::prove {
namespace {

using Kind = Event::Kind;

}  // namespace

void Link::close() {
  is_open_at_backup = false;
  is_broken = true;
  level_message = false;
  for (auto& transfer : transfers) transfer.reset();
}

void World::run_link_event(const Event& event) {
  Server& server = servers_[event.server];
  Link& link = server.link;
  Actions released;
  switch (event.kind) {
    case Kind::advance:
      return advance(event.server, true);
    case Kind::fill_without_room:
      --faults_.full_queues;
      return advance(event.server, false);
    case Kind::deliver_bucket: {
      const Transfer transfer = *std::exchange(link.transfers[event.bucket], std::nullopt);
      server.sides[1].protocol.import_bucket(event.bucket, transfer.state);
      server.sides[1].ledger.buckets[event.bucket] = transfer.ledger;
      link.acknowledgements[event.bucket] = true;
      return;
    }
    case Kind::deliver_acknowledgement:
      link.acknowledgements[event.bucket] = false;
      if (!link.progress->on_acknowledged(event.bucket)) return fail("an acknowledgement was not expected");
      link.gate.on_acknowledged(event.bucket, *link.progress, released);
      return release(event.server, released);
    case Kind::deliver_level:
      link.level_message = false;
      link.is_level = true;
      return;
    case Kind::mirror:
      link.known = server.sides[0].membership.known_members();
      return;
    case Kind::lose_link:
      --faults_.link_losses;
      link.is_broken = true;
      return;
    case Kind::primary_notices:
      link.progress.reset();
      link.filled.reset();
      std::fill(link.acknowledgements.begin(), link.acknowledgements.end(), false);
      link.gate.on_lost(released);
      return release(event.server, released);
    case Kind::backup_notices:
      return link.close();
    case Kind::expect_primary:
      // The control plane: the backup has nothing from now on, until its primary has declared it level again.
      link.close();
      link.is_level = false;
      link.is_expected = true;
      return;
    case Kind::welcome:
      return open_link(event.server);
    case Kind::detach:
      link.progress.reset();
      link.filled.reset();
      link.gate.on_detached(released);
      return release(event.server, released);
    case Kind::take_over:
      return take_over(event);
    case Kind::stop_replaced:
      return stop_side(event.server, 0);
    case Kind::lose_primary:
      --faults_.primary_losses;
      return stop_side(event.server, 0);
    default:
      --faults_.backup_losses;
      return stop_side(event.server, 1);
  }
}

void World::advance(uint8_t index, bool has_room) {
  Server& server = servers_[index];
  Link& link = server.link;
  BackupProgress& progress = *link.progress;
  while (progress.has_next()) {
    const uint32_t bucket = progress.next();
    if (!progress.is_filled()) {
      link.filled.emplace();
      server.sides[0].protocol.export_bucket(bucket, link.filled->state);
      link.filled->ledger = server.sides[0].ledger.buckets[bucket];
      progress.on_filled();
    }
    if (!has_room) return;
    if (link.transfers[bucket] && !link.is_broken) return fail("a slot is written that the backup may read");
    // A broken connection carries nothing.
    if (!link.is_broken) link.transfers[bucket] = std::move(link.filled);
    link.filled.reset();
    progress.on_put();
  }
  if (progress.is_level_unannounced()) {
    link.level_message = !link.is_broken;
    progress.on_announced();
  }
  link.gate.report_level(progress);
}

/// The handshake of a new connection, until Welcome has arrived.
void World::open_link(uint8_t index) {
  Link& link = servers_[index].link;
  link.gate.on_attaching(link.progress ? &*link.progress : nullptr);
  link.progress.emplace(config_->buckets);
  link.filled.reset();
  std::fill(link.acknowledgements.begin(), link.acknowledgements.end(), false);
  link.gate.on_attached(config_->buckets);
  link.is_open_at_backup = true;
  link.is_broken = link.is_expected = link.is_level = false;
  link.progress->begin_to_fill();
  Actions released;
  link.gate.on_message(*link.progress, released);
  release(index, released);
}

void World::release(uint8_t server, Actions& released) {
  for (const Action& action : released) answer(server, 0, action);
}

void World::take_over(const Event& event) {
  Server& server = servers_[event.server];
  Side& backup = server.sides[1];
  // BackupRole::check_takeover() compares the versions that a worker has seen. Here the versions of all workers are
  // compared.
  for (uint32_t bucket = 0; bucket < config_->buckets; ++bucket) {
    const uint64_t version = backup.protocol.version(bucket);
    if (version != backup.ledger.buckets[bucket].version) return fail("the backup has another version than it took");
    if (server.seen_versions[bucket] > version) return fail("the backup lacks a version that a worker has seen");
    server.taken_versions.push_back(version);
  }
  for (WorkerIndex worker = 0; worker < workers_.size(); ++worker) {
    for (uint32_t bucket = 0; bucket < config_->buckets; ++bucket) {
      const uint64_t step = workers_[worker].servers[event.server].buckets[bucket].acknowledged_step;
      if (step != 0 && !backup.ledger.has_applied(worker, workers_[worker].incarnation, bucket, step))
        return fail("an acknowledged update was lost");
      // BackupRole::check_takeover() compares the steps of the worker as well.
      const bool counts_steps = config_->mode.kind == ModeKind::async || config_->mode.kind == ModeKind::ssp;
      if (counts_steps && backup.protocol.done_step(worker, workers_[worker].incarnation, bucket).value_or(0) < step)
        return fail("a takeover that loses nothing would be refused");
    }
  }
  server.link.close();
  server.link.is_expected = false;
  backup.is_serving = true;
  backup.membership.restore(server.link.known, kNow);
  Actions dropped;
  for (const Membership::Known& known : server.link.known) {
    backup.protocol.add_former_member(known.worker, known.incarnation);
    backup.ledger.add(known.worker, known.incarnation, true);
    backup.ledger.arrive(known.worker, true);
    if (known.departed.empty()) {
      const Worker::Connection& connection = workers_[known.worker].servers[event.server];
      if (!connection.has_finished) continue;
      // The join for the takeover states that its steps are done.
      backup.ledger.expected[known.worker] = false;
      backup.protocol.mark_worker_finished(known.worker, known.incarnation, dropped);
      continue;
    }
    backup.ledger.remove(known.worker);
    backup.protocol.remove_worker(known.worker, known.incarnation, dropped);
  }
  for (const Action& action : dropped) {
    if (action.kind == Action::Kind::apply) return fail("a takeover applied a step and dropped it");
  }
}

void World::stop_side(uint8_t index, uint8_t side) {
  Server& server = servers_[index];
  Side& shard = server.sides[side];
  shard.is_running = false;
  // Answers that have left the process may still arrive.
  for (WorkerIndex worker = 0; worker < workers_.size(); ++worker) {
    close_port(index, side, worker);
    for (Lane& lane : shard.ports[worker].lanes) lane.copies.clear();
  }
  if (side == 0) {
    server.link.progress.reset();
    server.link.filled.reset();
    std::fill(server.link.acknowledgements.begin(), server.link.acknowledgements.end(), false);
    server.link.gate.reset();
    server.link.is_broken = true;
  } else {
    server.link.close();
    server.link.is_level = false;
  }
}

}  // namespace gradrail::ps::prove
