// A world as bytes.
#include <algorithm>

#include "tests/ps/prove/state_reader.h"
#include "tests/ps/prove/world.h"

namespace gradrail::ps::prove {
namespace {

void write(const Push& push, Bytes& bytes) {
  bytes.put(push.incarnation);
  bytes.put(static_cast<uint64_t>(push.kind));
  bytes.put(push.step);
  bytes.put(push.base_version + 1);  // the largest number means that there is none
}

void write(const std::optional<Push>& push, Bytes& bytes) {
  bytes.put(push.has_value());
  if (push) write(*push, bytes);
}

void write(const Port& port, Bytes& bytes) {
  bytes.put(port.is_open);
  bytes.put(port.is_open ? port.incarnation : 0);
  for (const Lane& lane : port.lanes) {
    write(lane.push, bytes);
    write(lane.slot, bytes);
    bytes.put(lane.copies.size());
    for (const Push& copy : lane.copies) write(copy, bytes);
    bytes.put(lane.answers.size());
    for (const Answer& answer : lane.answers) {
      bytes.put(answer.step);
      bytes.put(answer.version);
      bytes.put(answer.dropped);
    }
  }
}

void write(const Progress& progress, Bytes& bytes) {
  bytes.put(progress.incarnation);
  bytes.put(progress.applied);
  bytes.put(progress.arrived);
  bytes.put(progress.staleness);
  bytes.put(progress.joined_version);
}

void write(const std::optional<Transfer>& transfer, WorkerIndex worker, Bytes& bytes) {
  bytes.put(transfer.has_value());
  if (!transfer) return;
  write(transfer->ledger.workers[worker], bytes);
  StateReader::write_worker(transfer->state, worker, bytes);
}

void write_shared(const std::optional<Transfer>& transfer, Bytes& bytes) {
  bytes.put(transfer.has_value());
  if (!transfer) return;
  bytes.put(transfer->ledger.version);
  bytes.put(transfer->ledger.is_initialised);
  bytes.put(transfer->state.version);
  bytes.put(transfer->state.floor);
  bytes.put(transfer->state.initialised);
}

}  // namespace

void World::write_worker(WorkerIndex index, Bytes& bytes) const {
  const Worker& worker = workers_[index];
  bytes.put(static_cast<uint64_t>(worker.phase));
  bytes.put(worker.incarnation);
  bytes.put(worker.step);
  bytes.put(worker.first_step);
  bytes.put(worker.was_dropped);
  for (const Worker::Connection& connection : worker.servers) {
    bytes.put(static_cast<uint64_t>(connection.side) + 1);  // -1 becomes 0
    bytes.put(connection.has_joined);
    bytes.put(connection.has_finished);
    bytes.put(connection.has_left);
    for (const Worker::Bucket& bucket : connection.buckets) {
      bytes.put(bucket.is_answered);
      bytes.put(bucket.is_absent);
      bytes.put(bucket.is_late);
      bytes.put(bucket.seen_version);
      bytes.put(bucket.next_step);
      bytes.put(bucket.acknowledged_step);
    }
  }
  for (const Server& server : servers_) {
    for (const Side& side : server.sides) {
      StateReader::write_worker(side.protocol, index, bytes);
      if (config_->has_backup) StateReader::write_worker(side.membership, index, bytes);
      bytes.put(side.ledger.members[index]);
      bytes.put(side.ledger.arrived[index]);
      bytes.put(side.ledger.expected[index]);
      if (config_->mode.kind == ModeKind::ssp) bytes.put(side.ledger.removed[index]);  // others do not read it
      for (const BucketLedger& bucket : side.ledger.buckets) write(bucket.workers[index], bytes);
      write(side.ports[index], bytes);
    }
    if (!config_->has_backup) continue;
    StateReader::write_worker(server.link.gate, index, bytes);
    write(server.link.filled, index, bytes);
    for (const auto& transfer : server.link.transfers) write(transfer, index, bytes);
    for (const Membership::Known& known : server.link.known) {
      if (known.worker != index) continue;
      bytes.put(known.incarnation);
      bytes.put(known.departed.size());
    }
  }
}

void World::write_shared(Bytes& bytes) const {
  const Faults& f = faults_;
  for (const uint8_t left : {f.disconnects, f.copies, f.forgeries, f.restarts, f.kills, f.removals, f.primary_losses,
                             f.backup_losses, f.link_losses, f.full_queues, f.old_windows}) {
    bytes.put(left);
  }
  for (const Server& server : servers_) {
    for (const Side& side : server.sides) {
      bytes.put(side.is_running);
      bytes.put(side.is_serving);
      StateReader::write_shared(side.protocol, bytes);
      for (uint32_t index = 0; index < config_->buckets; ++index) {
        const BucketLedger& bucket = side.ledger.buckets[index];
        bytes.put(bucket.version);
        bytes.put(bucket.is_initialised);
        // Windows of earlier steps have no meaning.
        bytes.put(side.ledger.windows[index].begun == bucket.version + 1);
        bytes.put(side.ledger.windows[index].ended == bucket.version + 1);
      }
    }
    if (!config_->has_backup) continue;
    const Link& link = server.link;
    bytes.put(link.progress.has_value());
    if (link.progress) StateReader::write(*link.progress, bytes);
    StateReader::write_shared(link.gate, bytes);
    prove::write_shared(link.filled, bytes);
    for (const auto& transfer : link.transfers) prove::write_shared(transfer, bytes);
    for (const bool acknowledgement : link.acknowledgements) bytes.put(acknowledgement);
    bytes.put(link.level_message);
    bytes.put(link.is_broken);
    bytes.put(link.is_open_at_backup);
    bytes.put(link.is_expected);
    bytes.put(link.is_level);
    for (const uint64_t seen : server.seen_versions) bytes.put(seen);
    for (const uint64_t taken : server.taken_versions) bytes.put(taken);
  }
}

/// Workers are interchangeable, except for the chief that sends initial values: worlds that differ by a permutation of
/// the workers have the same bytes.
Bytes World::bytes() const {
  std::vector<Bytes> workers(workers_.size());
  for (WorkerIndex worker = 0; worker < workers_.size(); ++worker) write_worker(worker, workers[worker]);
  std::sort(workers.begin() + (config_->is_initialised ? 0 : 1), workers.end());
  Bytes all;
  for (const Bytes& worker : workers) all.put(worker);
  write_shared(all);
  return all;
}

}  // namespace gradrail::ps::prove
