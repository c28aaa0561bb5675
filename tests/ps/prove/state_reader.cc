#include "tests/ps/prove/state_reader.h"

#include <algorithm>

#include "ps/control/membership.h"
#include "ps/replication/backup_progress.h"
#include "ps/replication/bucket_state.h"
#include "ps/shard/answer_gate.h"
#include "ps/shard/shard_protocol.h"

namespace gradrail::ps {

using prove::Bytes;

void StateReader::write_worker(const ShardProtocol& protocol, uint32_t worker, Bytes& bytes) {
  const auto& [mode, buckets, members, expected, expected_count] = protocol;
  bytes.put(worker < expected.size() && expected[worker]);
  bytes.put(members.find(worker) != nullptr);
  if (members.find(worker) == nullptr) return;
  const auto& [known, incarnation, live, arrived, finished, former_member, replaced, exchanges] = *members.find(worker);
  bytes.put(incarnation);
  bytes.put(live);
  bytes.put(arrived);
  bytes.put(finished);
  bytes.put(former_member);
  bytes.put(replaced.size());
  for (const uint64_t former : replaced) bytes.put(former);
  for (const auto& [waiting, kind, step, base_version, done_step, done_staleness, done_dropped, withheld, fresh] :
       exchanges) {
    bytes.put(waiting);
    if (waiting) {  // else they have no meaning
      bytes.put(static_cast<uint64_t>(kind));
      bytes.put(step);
      bytes.put(base_version + 1);
    }
    bytes.put(done_step);
    bytes.put(done_staleness);
    bytes.put(done_dropped);
    bytes.put(withheld);
    bytes.put(fresh);
  }
}

void StateReader::write_shared(const ShardProtocol& protocol, Bytes& bytes) {
  const auto& [mode, buckets, members, expected, expected_count] = protocol;
  bytes.put(expected_count);
  // The last three are results of the other fields, kept to save a search.
  for (const auto& [version, initialised, waiting_count, push_count, floor, window, slowest, slowest_count,
                    answered_until] : buckets) {
    bytes.put(version);
    bytes.put(initialised);
    bytes.put(waiting_count);
    bytes.put(push_count);
    bytes.put(floor);
    bytes.put(static_cast<uint64_t>(window));
  }
}

void StateReader::write_worker(const AnswerGate& gate, uint32_t worker, Bytes& bytes) {
  for (const auto& bucket : gate.held_) {
    const auto is_its = [&](const auto& held) { return held.answer.worker == worker; };
    bytes.put(static_cast<uint64_t>(std::count_if(bucket.begin(), bucket.end(), is_its)));
    for (const auto& [answer, change] : bucket) {
      if (answer.worker != worker) continue;
      bytes.put(change + 1);  // the largest number means that no acknowledgement releases it
      bytes.put(answer.step);
      bytes.put(answer.version);
      bytes.put(answer.staleness);
      bytes.put(answer.dropped);
    }
  }
}

void StateReader::write_shared(const AnswerGate& gate, Bytes& bytes) {
  const auto& [held, is_unsure, was_reported_level] = gate;
  bytes.put(held.size());
  bytes.put(is_unsure);
  bytes.put(was_reported_level);
}

void StateReader::write_worker(const Membership& membership, uint32_t worker, Bytes& bytes) {
  const auto place = membership.workers_.find(worker);
  bytes.put(place != membership.workers_.end());
  if (place == membership.workers_.end()) return;
  // The other fields serve the end of a run, its causes, its barriers and silence. None of them decides about a join.
  const auto& [incarnation, name, phase, heard, is_expected, is_silent, cause, barrier_generation, ping_interval] =
      place->second;
  bytes.put(incarnation);
  bytes.put(static_cast<uint64_t>(phase));
  bytes.put(static_cast<uint64_t>(heard.time_since_epoch().count()));
  bytes.put(is_expected);
  // Which incarnations have ever joined decides how an unknown worker is answered.
  for (uint64_t former = 1; former <= incarnation; ++former) bytes.put(membership.incarnations_.contains(former));
}

void StateReader::write(const BackupProgress& progress, Bytes& bytes) {
  const auto& [phase, buckets, dirty, is_front_filled, missing, is_level_unannounced] = progress;
  bytes.put(static_cast<uint64_t>(phase));
  for (const auto& [changes, sent, acknowledged, level_at, queued, in_flight] : buckets) {
    bytes.put(changes);
    bytes.put(sent);
    bytes.put(acknowledged);
    bytes.put(level_at);
    bytes.put(queued);
    bytes.put(in_flight);
  }
  bytes.put(dirty.size());
  for (const uint32_t bucket : dirty) bytes.put(bucket);
  bytes.put(is_front_filled);
  bytes.put(missing);
  bytes.put(is_level_unannounced);
}

void StateReader::write_worker(const BucketState& state, uint32_t worker, Bytes& bytes) {
  for (const BucketState::Done& done : state.done) {
    if (done.worker != worker) continue;
    bytes.put(done.incarnation);
    bytes.put(done.step);
    bytes.put(done.staleness);
    bytes.put(done.dropped);
    bytes.put(done.fresh);
  }
}

}  // namespace gradrail::ps
