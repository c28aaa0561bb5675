#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "base/check.h"
#include "ps/checkpoint/checkpoint.h"
#include "ps/protocol/mode.h"
#include "ps/protocol/optimizer_settings.h"
#include "ps/protocol/shard_map.h"
#include "ps/protocol/slot_places.h"
#include "ps/shard/return_encoder.h"
#include "ps/shard/shard_protocol.h"
#include "ps/store/parameter_store.h"

namespace gradrail::ps {

/// The part of the model that a shard holds. The first worker that joins decides it.
struct ShardSetup {
  uint32_t shard_index = 0;
  ShardMap map;
  Mode mode;
  OptimizerConfig optimizer;
  PushFormat push = PushFormat::fp32;
  ReturnFormat returns = ReturnFormat::fp32;
  /// The whole model, which the shards of a task share: it is read once. Null: training starts without a checkpoint.
  std::shared_ptr<const Checkpoint> restored;
};

/// The partition of the model that a shard holds: its ranges, the store of its values and the protocol of its
/// exchanges.
/// Units    Ranges are elements of the whole model; offset() is counted from the shard's first element.
/// Threads  Owner thread of the shard.
class Partition {
 public:
  /// Replaces the partition by a new one. It is not set up before start().
  /// Errors  Those of `make_store`.
  absl::Status reset_to(const ShardSetup& setup, const StoreMaker& make_store, const MemoryBinder& place,
                        uint64_t slot_bytes);
  /// Copies the restored values into the store and starts the protocol.
  absl::Status start();
  /// Stops the exchanges of all members until the next start().
  void stop() { is_set_up_ = false; }
  bool is_set_up() const { return is_set_up_; }

  uint32_t shard_index() const { return setup_.shard_index; }
  const ShardMap& map() const { return setup_.map; }
  const Mode& mode() const { return setup_.mode; }
  const OptimizerConfig& optimizer() const { return setup_.optimizer; }
  PushFormat push_format() const { return setup_.push; }
  ReturnFormat return_format() const { return setup_.returns; }
  ElementRange range() const { return setup_.map.shard(setup_.shard_index); }
  uint32_t bucket_count() const { return setup_.map.bucket_count(setup_.shard_index); }
  ElementRange bucket_range(uint32_t bucket) const {
    GRADRAIL_CHECK(bucket < buckets_.size());
    return buckets_[bucket];
  }
  uint32_t fragment(uint32_t bucket) const { return setup_.map.fragment(setup_.shard_index, bucket); }
  size_t offset(uint32_t bucket) const { return bucket_range(bucket).first - range().first; }

  const SlotPlaces& places() const { return places_; }
  /// Limit that the places were made with; 0: none.
  uint64_t slot_bytes() const { return slot_bytes_; }

  bool has_store() const { return store_ != nullptr; }
  ParameterStore& store() const {
    GRADRAIL_CHECK(store_ != nullptr);
    return *store_;
  }
  /// Null: the parameters are in host memory.
  StoreDevice* device() const { return device_; }
  /// Interface to later results. Null: the results of the store are available immediately.
  LaterResults* later_results() const { return later_results_; }
  /// Result of ParameterStore::returns_parameters(); stored, because each answer needs it.
  bool returns_parameters() const { return returns_parameters_; }
  ShardProtocol& protocol() const {
    GRADRAIL_CHECK(protocol_ != nullptr);
    return *protocol_;
  }

  /// Elements for answers in delta.
  ReturnedElements& returned() { return returned_; }
  /// The parameters of a bucket in the store have changed.
  void on_changed(uint32_t bucket) { returned_.on_changed(bucket); }

  /// Copies parameters and state into `copy` and uses its memory again.
  /// Errors  FAILED_PRECONDITION: the parameters are not initialized. Otherwise those of the store.
  absl::Status copy_to(Checkpoint& copy) const;

 private:
  bool is_set_up_ = false;
  ShardSetup setup_;
  uint64_t slot_bytes_ = 0;
  SlotPlaces places_;
  std::vector<ElementRange> buckets_;  ///< copy of the map's buckets: each arrival needs its range several times
  std::unique_ptr<ParameterStore> store_;
  StoreDevice* device_ = nullptr;          ///< of store_
  LaterResults* later_results_ = nullptr;  ///< later results of store_
  bool returns_parameters_ = true;         ///< setting of store_
  std::unique_ptr<ShardProtocol> protocol_;
  ReturnedElements returned_;
};

}  // namespace gradrail::ps
