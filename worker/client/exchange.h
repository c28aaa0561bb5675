#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "base/clock.h"
#include "gpu/direct/staged_copies.h"
#include "ps/protocol/exchange_layout.h"
#include "ps/protocol/shard_map.h"
#include "worker/client/client.h"
#include "worker/client/model_memory.h"
#include "worker/client/paths/path_manager.h"
#include "worker/client/run_failure.h"
#include "worker/client/session/identity.h"
#include "worker/client/telemetry.h"

namespace gradrail::worker {

/// The exchange of one step: every bucket of the model goes to its shard once and is answered once.
///
/// A bucket passes these functions, each with a verb of its own.
///   Client::ready, exchange    a tensor, or all of them, are complete
///   Exchange::push_bucket      all tensors that overlap the bucket are complete
///     pack                     it is packed, if the format of the push is not fp32
///     stage                    … it is copied from the GPU, where no device reads GPU memory
///     submit                   its header is written
///     post_bucket              the path has room for it; without room it waits in the backlog
///   ShardPath::send_bucket     payload, then header
///   Connection::put            one write into the shard's memory
/// and its answer Exchange::on_answer.
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
  /// Forgets the shards and whatever is under way, before this worker joins again.
  void clear();

  /// The learning rate of the steps from now on.
  void set_rate(float rate) { rate_ = rate; }

  // One exchange: begin(), ready() for complete tensors (optional), push_all(), post_backlog() until outstanding() is
  // 0, finish().
  void begin(ps::ArrivalKind kind, TimePoint now);
  void ready(size_t tensor_index);
  void push_all();
  /// Posts the backlog until the paths have no room, and submits the buckets that the GPU has packed or copied. True
  /// while it packs or copies others.
  bool post_backlog();
  /// The same and the delivery of events, while the trainer computes; nothing to do without packing and staging.
  void progress();
  /// Offers initial values in place of a pull under way: the former chief left before it had sent its own.
  void offer_instead_of_pull();
  /// Errors  the run's failure; of the GPU, which is the run's failure from then on.
  absl::Status finish();

  bool is_under_way() const { return under_way_; }
  /// Whether all gradients of the exchange are complete: only then it ends.
  bool is_declared() const { return undeclared_ == 0; }
  size_t outstanding() const { return outstanding_; }
  bool has_backlog() const { return !backlog_.empty(); }
  bool is_pull() const { return kind_ == ps::ArrivalKind::pull; }
  /// How the payload of the exchange under way leaves: initial values stay exact.
  ps::PushFormat format() const { return is_push() ? memory_.push_format() : ps::PushFormat::fp32; }
  bool is_push() const { return kind_ == ps::ArrivalKind::push; }
  TimePoint begun_at() const { return begun_at_; }
  /// End of the last exchange that pushed gradients.
  TimePoint ended_at() const { return ended_at_; }
  /// Whether a step's gradients are under way, and nothing of its answer has come.
  bool is_unanswered_push() const;

  /// Step of the current or the last exchange; pulls do not count.
  uint64_t step() const { return step_; }
  void set_step(uint64_t step) {
    step_ = step;
    has_pushed_ = false;
  }
  /// The first step at a backup that took over. A worker that has not pushed yet begins there: the backup may lack the
  /// step that the lost ps has named.
  void lower_first_step(uint64_t first_step) {
    if (!has_pushed_) step_ = std::min(step_, first_step - 1);
  }
  /// Updates applied to the parameters that this worker holds (bucket 0).
  uint64_t global_step() const;
  /// Updates applied to each bucket of a shard, as this worker has seen them.
  std::vector<uint64_t> versions(uint32_t shard_index) const;

  // PathEvents
  void on_answer(ShardLink& link, uint64_t immediate) override;
  void on_path_lost(ShardLink& link) override;

 private:
  struct Bucket {
    ps::ElementRange range;        ///< in the whole model
    uint32_t tensors = 0;          ///< number of tensors that overlap it
    uint32_t tensors_missing = 0;  ///< of those, not ready in this exchange
    bool pushed = false;
    std::optional<gpu::CopyTicket> packed;  ///< end of the packing of this exchange's gradient; none: not begun
    ShardPath::Sent sent = ShardPath::Sent::nothing;
    bool outstanding = false;   ///< no answer yet in this exchange
    bool carries_late = false;  ///< quorum: the next push has the late gradient of this one in it
    uint64_t version = 0;
    uint32_t answer = 0;  ///< ReturnHeader::answer of the parameters that this worker has, over the path in use
  };
  struct Shard {
    ShardLink* link = nullptr;
    std::vector<Bucket> buckets;
  };
  /// A bucket on its way to a path.
  struct Pending {
    Shard* shard;
    uint32_t bucket_index;
    gpu::CopyTicket ready{};  ///< its gradient is packed, and on the host if it is staged; not used in the backlog
  };

  void count_tensors(Shard& shard);
  void push_bucket(Shard& shard, uint32_t bucket_index);
  bool is_staged(const ShardLink& link) const;
  bool waits_for_gpu(const ShardLink& link) const;
  void submit(Shard& shard, uint32_t bucket_index);
  bool post_bucket(Shard& shard, uint32_t bucket_index);
  bool submit_prepared();
  absl::Status store_answer(const ShardLink& link, const ps::ReturnHeader& header, uint32_t bucket_index);
  void take_back_late(Bucket& bucket, bool is_late);
  void catch_up();

  // Set once.
  const ClientOptions& options_;
  const Identity& identity_;
  ModelMemory& memory_;
  RunFailure& failure_;
  Telemetry& telemetry_;
  PathManager& paths_;

  // Owner thread. The model, cut into buckets.
  std::vector<Shard> shards_;                   ///< by shard index; fixed in size while entries are pending
  std::vector<std::vector<uint32_t>> touched_;  ///< per tensor: shards with buckets that overlap it

  // Owner thread. The exchange under way or the last one.
  ps::ArrivalKind kind_{};
  uint64_t step_ = 0;
  float rate_ = ps::kAgreedRate;
  bool has_pushed_ = false;  ///< since set_step()
  bool under_way_ = false;
  TimePoint begun_at_;
  TimePoint ended_at_;
  std::vector<bool> ready_;       ///< per tensor: reported as complete
  size_t undeclared_ = 0;         ///< tensors that neither ready() nor push_all() has declared as complete
  size_t outstanding_ = 0;        ///< invariant 1
  uint64_t waited_ns_ = 0;        ///< of the bucket that waited longest for other workers
  bool dropped_ = false;          ///< part of this gradient came too late to be summed
  std::deque<Pending> backlog_;   ///< written, and waiting for room on its path
  std::deque<Pending> prepared_;  ///< packed by the GPU, or on the way from it to the host
};

}  // namespace gradrail::worker
