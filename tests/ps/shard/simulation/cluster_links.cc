#include <algorithm>

#include "tests/ps/shard/simulation/cluster.h"

namespace gradrail::ps::simulation {
namespace {

constexpr int kToShard = 0;
constexpr int kToWorker = 1;
constexpr uint64_t kLateCopyDelays = 6;  // a late copy may come after the step that follows

}  // namespace

uint64_t Cluster::connect(WorkerIndex worker, uint32_t shard) {
  Link& line = link(worker, shard);
  line.up = true;
  line.connection = ++connections_made_;
  return line.connection;
}

void Cluster::lose(WorkerIndex worker, uint32_t shard) {
  Link& line = link(worker, shard);
  if (!line.up) return;
  line.up = false;
  trace("worker {} loses shard {}", worker, shard);
  const uint64_t lost = line.connection;
  // The shard may see the end before the worker is back, or only by its return.
  if (random_.below(2) == 0) queue_.post_in(delay(), [=, this] { shards_[shard].disconnect(worker, lost); });
  const uint64_t incarnation = workers_[worker].incarnation();
  queue_.post_in(2 * delay(), [=, this] { reconnect(worker, shard, incarnation, lost); });
}

void Cluster::reconnect(WorkerIndex worker, uint32_t shard, uint64_t incarnation, uint64_t lost_connection) {
  // A worker that left, was replaced or was declared lost meanwhile returns with a join instead.
  const bool is_same = workers_[worker].incarnation() == incarnation && workers_[worker].running();
  if (!is_same || link(worker, shard).connection != lost_connection) return;
  if (!ledger_.is_member(worker, incarnation, shard)) return;
  ++coverage_.reconnects;
  trace("worker {} reconnects to shard {}", worker, shard);
  shards_[shard].reconnect(worker, incarnation, connect(worker, shard));
  workers_[worker].repeat_unanswered(shard);
}

uint64_t Cluster::arrival_time(Link& line, int direction, uint32_t bucket) {
  uint64_t& last = line.last_arrival[direction][bucket];
  last = std::max(last + 1, queue_.now() + delay());
  return last;
}

void Cluster::send(uint32_t shard, const Arrival& arrival, uint64_t payload) {
  Link& line = link(arrival.worker, shard);
  if (!line.up) return;  // repeated when it is back
  const Notification notice{arrival, payload, line.connection};
  queue_.post_at(arrival_time(line, kToShard, arrival.bucket), [=, this] { deliver(shard, notice); });
  send_copies(shard, notice);
}

void Cluster::send_copies(uint32_t shard, Notification notice) {
  if (random_.uniform() >= plan_.duplicate_rate) return;
  ++coverage_.copies;
  if (random_.below(2) == 0) {
    Link& line = link(notice.arrival.worker, shard);
    queue_.post_at(arrival_time(line, kToShard, notice.arrival.bucket), [=, this] { deliver(shard, notice); });
    return;
  }
  notice.writes_slot = false;
  queue_.post_in(random_.below(kLateCopyDelays) * delay() + plan_.delay_max, [=, this] { deliver(shard, notice); });
}

void Cluster::deliver(uint32_t shard, const Notification& notice) {
  const Arrival& arrival = notice.arrival;
  const Link& line = link(arrival.worker, shard);
  if (!line.up && line.connection == notice.connection) {
    ++coverage_.lost_messages;
    return;
  }
  if (shards_[shard].incarnation_of(arrival.worker) != arrival.incarnation) ++coverage_.stale_arrivals;
  trace("worker {} -> shard {}: {} bucket {} step {}{}", arrival.worker, shard,
        arrival.kind == ArrivalKind::push ? "push" : "open", arrival.bucket, arrival.step,
        notice.writes_slot ? "" : " (late copy)");
  shards_[shard].arrive(notice);
}

void Cluster::answer(const Answer& message) {
  Link& line = link(message.worker, message.shard);
  if (!line.up || line.connection != message.connection) return;
  const int copies = random_.uniform() < plan_.duplicate_rate ? 2 : 1;
  for (int i = 0; i < copies; ++i) {
    queue_.post_at(arrival_time(line, kToWorker, message.bucket), [=, this] { deliver(message); });
  }
}

void Cluster::deliver(const Answer& message) {
  const Link& line = link(message.worker, message.shard);
  if (!line.up || line.connection != message.connection ||
      workers_[message.worker].incarnation() != message.incarnation) {
    ++coverage_.lost_messages;
    return;
  }
  trace("shard {} -> worker {}: bucket {} step {} version {}", message.shard, message.worker, message.bucket,
        message.step, message.version);
  workers_[message.worker].on_answer(message);
}

}  // namespace gradrail::ps::simulation
