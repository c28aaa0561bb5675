#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "ps/protocol/exchange_layout.h"

namespace gradrail::aggregator {

/// The decisions of an aggregator for one group of workers at one shard. They state which requests are summed, when the
/// sums leave, and to which workers an answer belongs. Pure: no thread, clock, socket or memory of gradients.
///
/// A *slot* is the place of a worker in its group, and its bit in SlotHeader::members.
///
/// Invariants
///   1. A bucket has one request under way at the shard at most.
///   2. A push is forwarded when each active worker that has not finished its steps has one waiting. Of several steps
///      the lowest goes first. A push of a step that the shard has applied goes at once: the shard answers it again.
///   3. Initial values go first. They replace pulls under way, which the shard would answer after them only.
///   4. Requests that share a place at the shard leave one after the other, and pushes in the order of the workers
///      (ps/protocol/slot_places.h). Shards then get the same order from groups and from single workers. An answer with
///      a checksum also uses the place.
///   5. A worker that leaves keeps its part of a request under way, and gets no answer.
///
/// Some workers of a step may have its answer when their former path is lost, and the rest repeat their pushes here.
/// These then wait for the others. probe() names the buckets in which that can be the case: the answer to a pull shows
/// whether the step is applied.
/// Threads  One owner.
class GroupProtocol {
 public:
  struct Request {
    ps::ArrivalKind kind{};
    uint64_t step = 0;  ///< of a pull or of initial values any number
    uint64_t base_version = 0;
  };
  /// A request to the shard. `step` is unique for pulls and initial values.
  struct Forward {
    ps::ArrivalKind kind{};
    uint64_t step = 0;
    uint64_t base_version = 0;
    uint64_t members = 0;
  };

  explicit GroupProtocol(uint32_t bucket_count) : buckets_(bucket_count) {
    set_places(std::vector<std::optional<uint32_t>>(bucket_count));
  }

  /// Per bucket the one that leaves before it from its place at the shard. Without one the place is its own.
  void set_places(const std::vector<std::optional<uint32_t>>& before);

  // The workers.
  void join(uint32_t slot);
  void leave(uint32_t slot);
  /// The steps of the worker are done. It may still pull.
  void finish(uint32_t slot) { finished_ |= bit(slot); }
  /// False: the worker has a request under way in this bucket.
  bool on_request(uint32_t slot, uint32_t bucket, const Request& request);

  // The shard.
  /// The request that leaves now, if there is one. It counts as under way.
  std::optional<Forward> forward(uint32_t bucket);
  /// The answer to the request with this step. Returns the workers that it is for: their requests are done. None: it
  /// answers no request under way, or a probe.
  std::optional<uint64_t> on_answer(uint32_t bucket, uint64_t step, uint64_t version);
  /// The connection is lost: what is under way waits again.
  void on_shard_lost();
  /// A pull for one of the workers that wait in this bucket, if the step may have been applied without them.
  std::optional<Forward> probe(uint32_t bucket);

  uint64_t active() const { return active_; }
  /// The workers with a request that waits.
  uint64_t waiting() const;
  bool is_waiting(uint32_t slot, uint32_t bucket) const { return entry(slot, bucket).state == State::waiting; }
  const Request& request(uint32_t slot, uint32_t bucket) const { return entry(slot, bucket).request; }
  /// Buckets in the place of this one, this one included, in their order.
  const std::vector<uint32_t>& at_place_of(uint32_t bucket) const { return places_[place_of_[bucket]]; }

  static constexpr uint64_t bit(uint32_t slot) { return uint64_t{1} << slot; }

 private:
  enum class State : uint8_t { none, waiting, forwarded };
  struct Entry {
    State state = State::none;
    Request request;
  };
  struct Bucket {
    std::array<Entry, ps::kMaxSumGroup> entries;
    bool is_under_way = false;
    bool is_probe = false;  ///< of what is under way
    Forward under_way;
    uint64_t version = 0;       ///< the highest that the shard has shown
    bool has_values = false;    ///< the shard has answered: it answers pulls at once
    bool may_be_behind = true;  ///< no push of all workers was forwarded since a worker has joined
  };

  const Entry& entry(uint32_t slot, uint32_t bucket) const { return buckets_[bucket].entries[slot]; }
  uint64_t members_waiting(const Bucket& bucket, ps::ArrivalKind kind) const;
  std::optional<Forward> next(const Bucket& bucket) const;
  bool has_place(uint32_t bucket, const Forward& next) const;
  void take_back(Bucket& bucket);

  std::vector<Bucket> buckets_;
  std::vector<std::vector<uint32_t>> places_;  ///< their buckets, in the order in which payloads leave
  std::vector<size_t> place_of_;               ///< per bucket
  uint64_t active_ = 0;
  uint64_t finished_ = 0;
  uint64_t next_number_ = uint64_t{1} << 63;  ///< of pulls and initial values: no step is as high
};

}  // namespace gradrail::aggregator
