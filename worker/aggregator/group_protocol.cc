#include "worker/aggregator/group_protocol.h"

#include <algorithm>
#include <bit>

#include "base/check.h"

namespace gradrail::aggregator {

using ps::ArrivalKind;

void GroupProtocol::join(uint32_t slot) {
  GRADRAIL_CHECK(slot < ps::kMaxSumGroup);
  active_ |= bit(slot);
  finished_ &= ~bit(slot);
  for (Bucket& bucket : buckets_) bucket.may_be_behind = true;
}

void GroupProtocol::leave(uint32_t slot) {
  active_ &= ~bit(slot);
  for (Bucket& bucket : buckets_) bucket.entries[slot].state = State::none;
}

bool GroupProtocol::on_request(uint32_t slot, uint32_t bucket_index, const Request& request) {
  GRADRAIL_CHECK((active_ & bit(slot)) != 0);
  Bucket& bucket = buckets_[bucket_index];
  const bool offers = request.kind == ArrivalKind::initialise;
  // The shard answers the pulls behind the initial values.
  if (offers && bucket.is_under_way && bucket.under_way.kind == ArrivalKind::pull) take_back(bucket);
  Entry& entry = bucket.entries[slot];
  if (entry.state == State::forwarded) return false;
  entry = {State::waiting, request};
  return true;
}

uint64_t GroupProtocol::members_waiting(const Bucket& bucket, ArrivalKind kind) const {
  uint64_t members = 0;
  for (uint64_t left = active_; left != 0; left &= left - 1) {
    const auto slot = static_cast<uint32_t>(std::countr_zero(left));
    const Entry& entry = bucket.entries[slot];
    if (entry.state == State::waiting && entry.request.kind == kind) members |= bit(slot);
  }
  return members;
}

/// The next request, without a number and without regard to the place.
std::optional<GroupProtocol::Forward> GroupProtocol::next(const Bucket& bucket) const {
  if (bucket.is_under_way) return std::nullopt;
  if (const uint64_t offers = members_waiting(bucket, ArrivalKind::initialise); offers != 0)
    return Forward{.kind = ArrivalKind::initialise, .members = offers & (~offers + 1)};
  if (const uint64_t pulls = members_waiting(bucket, ArrivalKind::pull); pulls != 0)
    return Forward{.kind = ArrivalKind::pull, .members = pulls};
  const uint64_t pushes = members_waiting(bucket, ArrivalKind::push);
  if (pushes == 0) return std::nullopt;
  Forward lowest{.kind = ArrivalKind::push, .step = UINT64_MAX, .base_version = UINT64_MAX};
  for (uint64_t left = pushes; left != 0; left &= left - 1) {
    const auto slot = static_cast<uint32_t>(std::countr_zero(left));
    const Request& request = bucket.entries[slot].request;
    if (request.step > lowest.step) continue;
    if (request.step < lowest.step)
      lowest = {.kind = ArrivalKind::push, .step = request.step, .base_version = UINT64_MAX};
    lowest.members |= bit(slot);
    lowest.base_version = std::min(lowest.base_version, request.base_version);
  }
  const bool all_wait = (active_ & ~finished_ & ~pushes) == 0;
  if (!all_wait && lowest.step > bucket.version) return std::nullopt;
  return lowest;
}

void GroupProtocol::set_places(const std::vector<std::optional<uint32_t>>& before) {
  GRADRAIL_CHECK(before.size() == buckets_.size());
  std::vector<std::optional<uint32_t>> after(before.size());
  for (uint32_t bucket = 0; bucket < before.size(); ++bucket) {
    if (before[bucket].has_value()) after[*before[bucket]] = bucket;
  }
  places_.clear();
  place_of_.assign(before.size(), 0);
  for (uint32_t first = 0; first < before.size(); ++first) {
    if (before[first].has_value()) continue;
    for (std::optional<uint32_t> bucket = first; bucket.has_value(); bucket = after[*bucket]) {
      if (*bucket == first) places_.emplace_back();
      places_.back().push_back(*bucket);
      place_of_[*bucket] = places_.size() - 1;
    }
  }
}

/// Invariant 4.
bool GroupProtocol::has_place(uint32_t bucket_index, const Forward& next) const {
  bool is_before = true;
  for (const uint32_t other_index : at_place_of(bucket_index)) {
    const Bucket& other = buckets_[other_index];
    if (other_index == bucket_index) {
      is_before = false;
      continue;
    }
    if (other.is_under_way) return false;
    if (!is_before || next.kind != ArrivalKind::push) continue;
    for (uint64_t left = members_waiting(other, ArrivalKind::push); left != 0; left &= left - 1) {
      if (other.entries[static_cast<uint32_t>(std::countr_zero(left))].request.step <= next.step) return false;
    }
  }
  return true;
}

std::optional<GroupProtocol::Forward> GroupProtocol::forward(uint32_t bucket_index) {
  Bucket& bucket = buckets_[bucket_index];
  std::optional<Forward> next = this->next(bucket);
  if (next.has_value() && next->kind == ArrivalKind::initialise) {
    for (const uint32_t other : at_place_of(bucket_index)) {
      if (!buckets_[other].has_values && buckets_[other].under_way.kind == ArrivalKind::pull)
        take_back(buckets_[other]);
    }
  }
  if (!next.has_value() || !has_place(bucket_index, *next)) return std::nullopt;
  if (next->kind == ArrivalKind::push) {
    const bool all_wait = (active_ & ~finished_ & ~next->members) == 0;
    if (all_wait) bucket.may_be_behind = false;
  } else {
    next->step = next_number_++;
  }
  for (uint64_t left = next->members; left != 0; left &= left - 1)
    bucket.entries[static_cast<uint32_t>(std::countr_zero(left))].state = State::forwarded;
  bucket.is_under_way = true;
  bucket.is_probe = false;
  bucket.under_way = *next;
  return next;
}

std::optional<uint64_t> GroupProtocol::on_answer(uint32_t bucket_index, uint64_t step, uint64_t version) {
  Bucket& bucket = buckets_[bucket_index];
  if (!bucket.is_under_way || bucket.under_way.step != step) return std::nullopt;
  bucket.is_under_way = false;
  bucket.version = std::max(bucket.version, version);
  bucket.has_values = true;
  if (bucket.is_probe) return std::nullopt;
  uint64_t done = 0;
  for (uint64_t left = bucket.under_way.members & active_; left != 0; left &= left - 1) {
    const auto slot = static_cast<uint32_t>(std::countr_zero(left));
    Entry& entry = bucket.entries[slot];
    if (entry.state != State::forwarded) continue;  // it has left and joined again
    entry.state = State::none;
    done |= bit(slot);
  }
  return done;
}

void GroupProtocol::take_back(Bucket& bucket) {
  if (!bucket.is_under_way) return;
  bucket.is_under_way = false;
  for (Entry& entry : bucket.entries) {
    if (entry.state == State::forwarded) entry.state = State::waiting;
  }
}

void GroupProtocol::on_shard_lost() {
  for (Bucket& bucket : buckets_) {
    if (bucket.is_under_way) bucket.may_be_behind = true;
    take_back(bucket);
  }
}

std::optional<GroupProtocol::Forward> GroupProtocol::probe(uint32_t bucket_index) {
  Bucket& bucket = buckets_[bucket_index];
  const uint64_t pushes = members_waiting(bucket, ArrivalKind::push);
  if (bucket.is_under_way || !bucket.may_be_behind || pushes == 0 || next(bucket).has_value()) return std::nullopt;
  if (!has_place(bucket_index, {.kind = ArrivalKind::pull})) return std::nullopt;
  bucket.is_under_way = bucket.is_probe = true;
  bucket.under_way = {.kind = ArrivalKind::pull, .step = next_number_++, .members = pushes & (~pushes + 1)};
  return bucket.under_way;
}

uint64_t GroupProtocol::waiting() const {
  uint64_t members = 0;
  for (const Bucket& bucket : buckets_) {
    for (const ArrivalKind kind : {ArrivalKind::initialise, ArrivalKind::pull, ArrivalKind::push})
      members |= members_waiting(bucket, kind);
  }
  return members;
}

}  // namespace gradrail::aggregator
