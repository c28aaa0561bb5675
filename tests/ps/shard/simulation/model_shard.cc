#include "tests/ps/shard/simulation/model_shard.h"

#include <utility>

#include "fmt/format.h"

namespace gradrail::ps::simulation {
namespace {

constexpr uint64_t kNoConnection = 0;

}  // namespace

ModelShard::ModelShard(uint32_t index, const Plan& plan, Ledger& ledger, Port port)
    : index_(index),
      ledger_(ledger),
      port_(std::move(port)),
      protocol_(plan.mode, plan.bucket_counts[index], plan.initialised, plan.initial_version),
      parameters_(plan.bucket_counts[index], 0) {}

void ModelShard::join(WorkerIndex worker, uint64_t incarnation, uint64_t connection) {
  ledger_.on_joined(worker, incarnation, index_);
  protocol_.add_worker(worker, incarnation);
  peers_[worker] = {incarnation, connection, std::vector<Slot>(bucket_count())};
}

void ModelShard::remove(WorkerIndex worker, uint64_t incarnation) {
  ledger_.on_removed(worker, incarnation, index_);
  actions_.clear();
  protocol_.remove_worker(worker, incarnation, actions_);
  run_actions();
}

void ModelShard::disconnect(WorkerIndex worker, uint64_t connection) {
  const auto peer = peers_.find(worker);
  if (peer == peers_.end() || peer->second.connection != connection) return;
  reconnect(worker, peer->second.incarnation, kNoConnection);
}

void ModelShard::reconnect(WorkerIndex worker, uint64_t incarnation, uint64_t connection) {
  protocol_.reconnect_worker(worker, incarnation);
  peers_[worker] = {incarnation, connection, std::vector<Slot>(bucket_count())};
}

void ModelShard::arrive(const Notification& notice) {
  const Arrival& arrival = notice.arrival;
  const auto peer = peers_.find(arrival.worker);
  const bool is_connected = peer != peers_.end() && peer->second.connection == notice.connection;
  // A connection that was replaced by one of the same incarnation is closed: nothing arrives over it.
  if (!is_connected && peer != peers_.end() && peer->second.incarnation == arrival.incarnation) return;
  if (is_connected && notice.writes_slot && arrival.kind != ArrivalKind::pull) {
    peer->second.slots[arrival.bucket] = {has_payload(arrival.kind), arrival.kind,  arrival.incarnation, arrival.step,
                                          arrival.base_version,      notice.payload};
  }
  ledger_.on_arrived(arrival.worker, arrival.incarnation, index_);
  if (is_of_step(arrival.kind)) {
    ledger_.on_push_arrived({arrival.worker, arrival.incarnation, index_, arrival.bucket}, arrival.step);
  }
  actions_.clear();
  protocol_.on_arrival(arrival, actions_);
  run_actions();
}

void ModelShard::end_window(uint32_t bucket, uint64_t step) {
  ledger_.on_window_end(index_, bucket, step);
  actions_.clear();
  protocol_.on_window_end(bucket, step, actions_);
  run_actions();
}

void ModelShard::forge(const Arrival& arrival) {
  const bool member = ledger_.is_member(arrival.worker, arrival.incarnation, index_);
  ledger_.on_arrived(arrival.worker, arrival.incarnation, index_);
  actions_.clear();
  protocol_.on_arrival(arrival, actions_);
  if (!member && !actions_.empty()) return ledger_.fail("the push of a non-member had an effect");
  if (!member) return;
  if (actions_.size() != 1 || actions_[0].kind != Action::Kind::refuse) {
    return ledger_.fail(fmt::format("worker {} shard {} bucket {}: step {} leaves a gap and was not refused",
                                    arrival.worker, index_, arrival.bucket, arrival.step));
  }
  // The connection ends, and its slots with it. The protocol needs no call for that.
  peers_[arrival.worker] = {arrival.incarnation, kNoConnection, std::vector<Slot>(bucket_count())};
  port_.refused(arrival.worker, actions_[0]);
}

void ModelShard::join_too_late(WorkerIndex worker, uint64_t incarnation) { protocol_.add_worker(worker, incarnation); }

uint64_t ModelShard::incarnation_of(WorkerIndex worker) const {
  const auto peer = peers_.find(worker);
  return peer == peers_.end() ? 0 : peer->second.incarnation;
}

void ModelShard::check_final() const {
  for (uint32_t bucket = 0; bucket < bucket_count(); ++bucket) {
    ledger_.check_final(index_, bucket, protocol_.version(bucket), parameters_[bucket]);
  }
}

void ModelShard::run_actions() {
  for (const Action& action : actions_) {
    if (ledger_.failed()) return;
    switch (action.kind) {
      case Action::Kind::initialise:
        parameters_[action.bucket] = peers_.at(action.worker).slots[action.bucket].payload;
        ledger_.on_initialise(action, index_, parameters_[action.bucket]);
        break;
      case Action::Kind::apply:
        apply(action);
        break;
      case Action::Kind::answer:
        answer(action);
        break;
      case Action::Kind::refuse:
        ledger_.fail("refused without a cause: " + action.reason);
        break;
      case Action::Kind::begin_window:
        ledger_.on_window(action, index_);
        port_.begin_window(action.bucket, action.step);
        break;
    }
  }
}

void ModelShard::apply(const Action& action) {
  std::vector<Slot> slots;
  for (const WorkerIndex worker : action.contributors) {
    slots.push_back(peers_.at(worker).slots[action.bucket]);
    parameters_[action.bucket] += slots.back().payload;
  }
  std::vector<Piece> absent;
  for (const auto& [worker, peer] : peers_) {
    const Slot& slot = peer.slots[action.bucket];
    if (slot.kind == ArrivalKind::absent && slot.step >= action.step &&
        ledger_.is_member(worker, slot.incarnation, index_))
      absent.push_back({worker, slot.incarnation, index_, action.bucket});
  }
  ledger_.on_apply(action, index_, slots, absent);
}

void ModelShard::answer(const Action& action) {
  ledger_.on_answer(action, index_);
  const Peer& peer = peers_.at(action.worker);
  port_.answer({action.worker, peer.incarnation, index_, action.bucket, action.step, action.version,
                parameters_[action.bucket], peer.connection, action.dropped, action.next_step});
}

}  // namespace gradrail::ps::simulation
