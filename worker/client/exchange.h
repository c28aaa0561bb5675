#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "base/check.h"
#include "gpu/direct/staged_copies.h"
#include "gradrail/client.h"
#include "gradrail/clock.h"
#include "ps/protocol/exchange_layout.h"
#include "ps/protocol/shard_map.h"
#include "worker/client/model_memory.h"
#include "worker/client/paths/path_manager.h"
#include "worker/client/run_failure.h"
#include "worker/client/session/identity.h"
#include "worker/client/telemetry.h"

namespace gradrail::worker {

/// The exchanges of the fragments of a model. One step of a fragment sends each of its buckets to its shard once, and
/// each gets one answer. Fragments count their own steps, and their exchanges may overlap.
///
/// A bucket passes these functions in this order.
///   Client::ready, exchange    a tensor, or all of them, are complete
///   Exchange::push_bucket      all tensors that overlap the bucket are complete
///   start_bucket               its place at the shard is free
///     pack                     it is packed, if the format of the push is not fp32
///     stage                    … it is copied from the GPU, where no device reads GPU memory
///     submit                   its header is written
///     post_bucket              the path has room for it; without room it waits in the backlog
///   ShardPath::send_bucket     gradients, then header
///   PreparedPuts::post         writes into the shard's memory
/// and its answer Exchange::on_answer.
///
/// A gradient may be late in some buckets of a quorum. The exchange then continues with a further step, in which these
/// buckets are pushed again, and the worker is absent from the others (repeat_late). With several fragments, late
/// gradients are dropped: workers that wait for each other in different fragments would never continue.
///
/// Invariants
///   1. outstanding() is the number of buckets without an answer; it is 0 outside an exchange that has not failed.
///   2. A bucket in the backlog or under way from the GPU has `pushed`, and its link has had a path when it was pushed.
///   3. Buckets leave in the order of push_bucket() per link: the shard applies them in the order of their puts.
/// Threads  Owner thread.
class Exchange final : public PathEvents {
 public:
  /// All references outlive this; `paths` is first used by cut_model().
  Exchange(const ClientOptions& options, const Identity& identity, ModelMemory& memory, RunFailure& failure,
           Telemetry& telemetry, PathManager& paths);

  /// Cuts the model into the buckets of the shards that the path manager has links to, and sets the part of each link.
  /// Errors  INVALID_ARGUMENT as ps::ShardMap::cut().
  absl::Status cut_model();
  /// Removes the shards and all pending transfers before this worker joins again.
  void clear();

  /// The learning rate of the steps from now on, and the weight of their gradients.
  void set_rate(float rate) { rate_ = rate; }
  void set_weight(float weight) { weight_ = weight; }

  /// Index of a fragment of the model, in the order of ps::Layout::fragments.
  using Index = uint32_t;
  Index fragment_count() const { return static_cast<Index>(fragments_.size()); }
  Index fragment_of(size_t tensor_index) const {
    const auto& fragments = memory_.layout().tensor_fragment;
    GRADRAIL_CHECK(tensor_index < fragments.size());
    return fragments[tensor_index];
  }

  // One exchange: begin(), ready() for complete tensors (optional), push_all(), post_backlog() until outstanding() is
  // 0, finish().
  void begin(Index fragment, ps::ArrivalKind kind, TimePoint now);
  void ready(size_t tensor_index);
  /// The same for a part of the model, with the rate and the weight of its gradient. The parts of one exchange are
  /// disjoint.
  void ready(ps::ElementRange part, float rate, float weight);
  void push_all(Index fragment);
  /// Posts the backlog until the paths have no room, and submits the buckets that the GPU has packed or copied. True
  /// while it packs or copies others.
  bool post_backlog();
  /// The same and the delivery of events, while the trainer computes; nothing to do without packing and staging.
  void progress();
  /// Offers initial values in place of the pulls under way: the former chief left before it had sent its own.
  void offer_instead_of_pull();
  /// Errors  the run's failure; of the GPU, which is the run's failure from then on.
  absl::Status finish(Index fragment);

  bool is_under_way() const;
  bool is_under_way(Index fragment) const {
    GRADRAIL_CHECK(fragment < fragments_.size());
    return fragments_[fragment].under_way;
  }
  /// Whether all gradients of the exchange are complete: only then it ends.
  bool is_declared(Index fragment) const { return fragments_[fragment].undeclared == 0; }
  /// Whether a late gradient is pushed again in the next step. Another of several fragments may expect the worker while
  /// it waits for the further step of this one.
  bool repeats_late() const {
    return options_.mode.kind == ModeKind::quorum && !options_.mode.drops_late && fragments_.size() == 1;
  }
  size_t outstanding(Index fragment) const { return fragments_[fragment].outstanding; }
  bool has_backlog() const { return !backlog_.empty(); }
  ps::ArrivalKind kind(Index fragment) const { return fragments_[fragment].kind; }
  TimePoint begun_at(Index fragment) const { return fragments_[fragment].begun_at; }
  /// End of the last exchange that pushed gradients.
  TimePoint ended_at() const { return ended_at_; }
  /// Whether the gradients of a step of the first fragment are under way without any part of the answer.
  bool is_unanswered_push() const;

  /// Step of the current or the last exchange; pulls do not count.
  uint64_t step(Index fragment = 0) const { return fragments_[fragment].step; }
  /// The last step with all answers since set_first_steps(); 0: none.
  uint64_t done_step(Index fragment) const { return fragments_[fragment].done_step; }
  /// The first steps of this worker, by fragment.
  void set_first_steps(const std::vector<uint64_t>& first_steps);
  /// The first steps at a backup that took over. A worker that has not pushed yet begins there: the backup may lack the
  /// step that the lost ps has named.
  void lower_first_steps(const std::vector<uint64_t>& first_steps);
  /// Updates applied to the parameters that this worker holds (the first bucket of the fragment).
  uint64_t global_step(Index fragment = 0) const;
  /// Number of updates applied to each bucket of a shard, as of the answers to this worker.
  std::vector<uint64_t> versions(uint32_t shard_index) const;
  /// The last step that each bucket of a shard has answered since set_first_steps(); 0: none. A step under way may have
  /// answers of some buckets already.
  std::vector<uint64_t> answered_steps(uint32_t shard_index) const;

  // PathEvents
  void on_answer(ShardLink& link, uint64_t immediate) override;
  void on_path_lost(ShardLink& link) override;

 private:
  struct Bucket {
    ps::ElementRange range;  ///< range in the whole model
    Index fragment = 0;
    uint32_t tensors = 0;           ///< number of tensors that overlap it
    uint32_t tensors_missing = 0;   ///< its tensors that are not ready in this exchange
    uint64_t elements_missing = 0;  ///< elements not ready in this exchange, by parts
    float rate = 0.0f;              ///< learning rate of this exchange
    float weight = 1.0f;
    ps::ArrivalKind kind{};  ///< kind of this exchange; absent in the further steps of a quorum
    bool pushed = false;
    std::optional<gpu::CopyTicket> packed;  ///< end of the packing of this exchange's gradient; none: not begun
    size_t posted = 0;                      ///< puts of this step that the transport has taken
    bool outstanding = false;               ///< no answer yet in this step
    bool has_pull = false;                  ///< initial values were offered, and the pull may still be answered
    bool is_late = false;                   ///< quorum: its gradient has not been applied
    uint64_t version = 0;
    uint64_t next_step = 0;  ///< ReturnHeader::next_step of the latest answer
    uint32_t answer = 0;     ///< ReturnHeader::answer of the parameters that this worker has, over the path in use

    void begin_step(ps::ArrivalKind step_kind);
    /// SlotHeader::step of this bucket. The answer to its pull does not free the place of an offer.
    uint64_t sent_step(uint64_t step) const { return has_pull ? ~step : step; }
  };
  struct Shard {
    ShardLink* link = nullptr;
    std::vector<Bucket> buckets;
  };
  /// The exchange of a fragment that is under way, or its last one.
  struct Fragment {
    size_t tensor_count = 0;
    size_t bucket_count = 0;
    ps::ArrivalKind kind{};
    uint64_t step = 0;
    uint64_t done_step = 0;   ///< result of done_step()
    bool has_pushed = false;  ///< a push has left since set_first_steps()
    bool under_way = false;
    TimePoint begun_at;
    size_t undeclared = 0;        ///< tensors that neither ready() nor push_all() has declared as complete
    size_t outstanding = 0;       ///< invariant 1
    size_t late_count = 0;        ///< quorum: buckets with is_late
    uint64_t late_staleness = 0;  ///< quorum: step distance of the late gradient
    bool dropped = false;         ///< part of this gradient was too late for the sum
    uint64_t waited_ns = 0;       ///< longest time that a bucket waited for other workers
  };
  /// A bucket on its way to a path.
  struct Pending {
    Shard* shard;
    uint32_t bucket_index;
    gpu::CopyTicket ready{};  ///< its gradient is packed, and on the host if it is staged; not used in the backlog
  };

  void count_tensors(Shard& shard);
  template <typename Function>
  void for_each_bucket(Index fragment, Function function);
  uint64_t lowest_version(Index fragment) const;
  /// Format of the payload of a bucket: initial values stay exact.
  PushFormat format(const Bucket& bucket) const {
    return bucket.kind == ps::ArrivalKind::push ? memory_.push_format() : PushFormat::fp32;
  }
  void push_bucket(Shard& shard, uint32_t bucket_index);
  void start_bucket(Shard& shard, uint32_t bucket_index);
  void start_next_at_place(Shard& shard, uint32_t bucket_index);
  bool is_staged(const ShardLink& link, ps::ArrivalKind kind) const;
  bool waits_for_gpu(const ShardLink& link, ps::ArrivalKind kind) const;
  void submit(Shard& shard, uint32_t bucket_index);
  bool post_bucket(Shard& shard, uint32_t bucket_index);
  bool submit_prepared();
  absl::Status store_answer(const ShardLink& link, const ps::ReturnHeader& header, uint32_t bucket_index);
  void repeat_late(Index fragment);
  void raise_first_step(Index index);
  void catch_up(Index fragment);

  // Set once.
  const ClientOptions& options_;
  const Identity& identity_;
  ModelMemory& memory_;
  RunFailure& failure_;
  Telemetry& telemetry_;
  PathManager& paths_;

  // Owner thread. The model, cut into buckets.
  std::vector<Shard> shards_;                   ///< indexed by shard; fixed in size while entries are pending
  std::vector<std::vector<uint32_t>> touched_;  ///< shards with buckets that overlap each tensor

  // Owner thread. The exchanges.
  std::vector<Fragment> fragments_;
  std::vector<bool> ready_;  ///< tensors reported as complete
  float rate_;
  float weight_ = 1.0f;
  TimePoint ended_at_;
  std::deque<Pending> backlog_;   ///< written, and waiting for room on its path
  std::deque<Pending> prepared_;  ///< packed by the GPU, or on the way from it to the host
};

}  // namespace gradrail::worker
