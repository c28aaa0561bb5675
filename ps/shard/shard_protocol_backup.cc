// The state of a bucket's exchanges, exported by a primary and imported by its backup.
#include "base/check.h"
#include "ps/shard/shard_protocol.h"

namespace gradrail::ps {

void ShardProtocol::export_bucket(uint32_t bucket, BucketState& state) const {
  GRADRAIL_CHECK(bucket < buckets_.size());
  state.version = buckets_[bucket].version;
  state.floor = buckets_[bucket].floor;
  state.initialised = buckets_[bucket].initialised;
  state.done.clear();
  // Removed members too: one of them may return to the backup and repeat its last push.
  Members::each(members_, [&](WorkerIndex worker, const Member& member) {
    const Exchange& exchange = member.exchanges[bucket];
    state.done.push_back({.worker = worker,
                          .incarnation = member.incarnation,
                          .step = exchange.done_step,
                          .staleness = exchange.done_staleness,
                          .dropped = exchange.done_dropped,
                          .fresh = exchange.fresh});
  });
}

void ShardProtocol::import_bucket(uint32_t bucket, const BucketState& state) {
  GRADRAIL_CHECK(bucket < buckets_.size());
  GRADRAIL_CHECK(buckets_[bucket].waiting_count == 0);  // the assignment below would lose the count
  buckets_[bucket] = {.version = state.version, .initialised = state.initialised, .floor = state.floor};
  for (const BucketState::Done& done : state.done) {
    Member& member = members_.add(done.worker);
    member.known = true;
    if (member.exchanges.empty() || member.incarnation != done.incarnation) {
      // 0: the row was created by this function, and has no predecessor.
      if (member.incarnation != 0) member.replaced.push_back(member.incarnation);
      member.incarnation = done.incarnation;
      // Each bucket brings its own state. Until then it holds only the step at which the member begins.
      member.exchanges.assign(buckets_.size(), Exchange{});
      for (size_t i = 0; i < buckets_.size(); ++i) {
        buckets_[i].slowest_count = 0;
        if (mode_.kind == ModeKind::ssp) member.exchanges[i].done_step = buckets_[i].floor;
      }
    }
    member.exchanges[bucket] = {
        .done_step = done.step, .done_staleness = done.staleness, .done_dropped = done.dropped, .fresh = done.fresh};
  }
}

}  // namespace gradrail::ps
