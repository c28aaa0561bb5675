#include "ps/replication/backup_progress.h"

#include <cassert>

#include "base/check.h"

namespace gradrail::ps {

void BackupProgress::record_change(uint32_t bucket_index) {
  assert(bucket_index < buckets_.size());
  Bucket& bucket = buckets_[bucket_index];
  ++bucket.changes;
  // Nothing is queued in the handshake: begin_to_fill() queues every bucket. A bucket in flight is queued by its
  // acknowledgement: its slot must not change before.
  if (bucket.queued || bucket.in_flight || phase_ == Phase::handshake) return;
  bucket.queued = true;
  dirty_.push_back(bucket_index);
}

void BackupProgress::begin_to_fill() {
  GRADRAIL_CHECK(phase_ == Phase::handshake);
  phase_ = Phase::filling;
  missing_ = buckets_.size();
  for (uint32_t i = 0; i < buckets_.size(); ++i) record_change(i);
  // A shard without buckets is level immediately: no acknowledgement will arrive.
  if (missing_ == 0) begin_to_hold();
}

void BackupProgress::on_filled() {
  GRADRAIL_CHECK(has_next() && !is_front_filled_);
  Bucket& bucket = buckets_[next()];
  GRADRAIL_CHECK(!bucket.in_flight);  // invariant 1
  // Counted here and not at the put: changes while the slot waits for room are not in it.
  bucket.sent = bucket.changes;
  is_front_filled_ = true;
}

void BackupProgress::on_put() {
  GRADRAIL_CHECK(is_front_filled_);
  Bucket& bucket = buckets_[next()];
  bucket.queued = false;
  // Changes since on_filled() are not in the slot. The acknowledgement queues the bucket again.
  bucket.in_flight = true;
  is_front_filled_ = false;
  dirty_.pop_front();
}

bool BackupProgress::on_acknowledged(uint64_t bucket_index) {
  // Another process sends the number.
  if (bucket_index >= buckets_.size() || !buckets_[bucket_index].in_flight) return false;
  Bucket& bucket = buckets_[bucket_index];
  GRADRAIL_CHECK(bucket.sent > bucket.acknowledged && bucket.sent <= bucket.changes);
  const bool first = bucket.acknowledged == 0;
  const bool was_short = bucket.acknowledged < bucket.level_at;
  bucket.in_flight = false;
  bucket.acknowledged = bucket.sent;
  if (bucket.changes > bucket.sent) {  // updates during the transfer: the next one carries them
    bucket.queued = true;
    dirty_.push_back(static_cast<uint32_t>(bucket_index));
  }
  GRADRAIL_CHECK(phase_ != Phase::filling || !first || missing_ > 0);  // the first of each bucket counts once
  if (phase_ == Phase::filling && first && --missing_ == 0) {
    begin_to_hold();
  } else if (phase_ == Phase::leveling && was_short && bucket.acknowledged >= bucket.level_at) {
    GRADRAIL_CHECK(missing_ > 0);
    --missing_;
    settle_level();
  }
  return true;
}

void BackupProgress::begin_to_hold() {
  phase_ = Phase::leveling;
  GRADRAIL_CHECK(missing_ == 0);
  // Answers up to this moment left without the backup's state: it is level when it has the changes of now.
  for (Bucket& bucket : buckets_) {
    bucket.level_at = bucket.changes;
    if (bucket.acknowledged < bucket.level_at) ++missing_;
  }
  settle_level();
}

void BackupProgress::settle_level() {
  if (missing_ > 0) return;
  GRADRAIL_CHECK(phase_ == Phase::leveling);
  phase_ = Phase::level;
  is_level_unannounced_ = true;
}

}  // namespace gradrail::ps
