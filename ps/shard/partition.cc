#include "ps/shard/partition.h"

#include <utility>
#include <vector>

#include "absl/types/span.h"
#include "base/status.h"
#include "fmt/format.h"
#include "ps/protocol/push_format.h"

namespace gradrail::ps {

absl::Status Partition::reset_to(const ShardSetup& setup, const StoreMaker& make_store, const MemoryBinder& place,
                                 uint64_t slot_bytes) {
  is_set_up_ = false;
  setup_ = setup;
  slot_bytes_ = slot_bytes;
  buckets_.clear();
  for (uint32_t i = 0; i < bucket_count(); ++i) buckets_.push_back(setup_.map.bucket(setup_.shard_index, i));
  places_ = SlotPlaces(setup_.map, setup_.shard_index, slot_bytes_);
  returned_.reset(bucket_count(), range().count);
  GRADRAIL_ASSIGN_OR_RETURN(store_, make_store(setup_.optimizer, range().count, place));
  device_ = store_->device();
  later_results_ = store_->later_results();
  returns_parameters_ = store_->returns_parameters();
  if (device_ != nullptr && !is_for_gpus(setup_.push)) {
    return absl::FailedPreconditionError(
        fmt::format("push {}: parameters in GPU memory do not take it (--ps_device host takes all formats)",
                    push_format_name(setup_.push)));
  }
  return absl::OkStatus();
}

absl::Status Partition::start() {
  GRADRAIL_CHECK(store_ != nullptr && !is_set_up_);
  const bool is_restored = setup_.restored != nullptr;
  protocol_ = std::make_unique<ShardProtocol>(setup_.mode, bucket_count(), is_restored, 0);
  if (is_restored) {
    const Checkpoint& saved = *setup_.restored;
    GRADRAIL_CHECK(saved.parameters.size() == setup_.map.elements());
    // All buckets of a fragment get one version: the bucket versions in the files belong to the cut of that save.
    for (uint32_t i = 0; i < bucket_count(); ++i) protocol_->set_version(i, step_of(saved.header, fragment(i)));
    const auto part = [&](const std::vector<float>& whole) {
      return absl::MakeConstSpan(whole).subspan(range().first, range().count);
    };
    GRADRAIL_RETURN_IF_ERROR(store_->set(0, part(saved.parameters)));
    for (size_t i = 0; i < saved.state.size(); ++i) {
      GRADRAIL_RETURN_IF_ERROR(store_->set_state(static_cast<int>(i), 0, part(saved.state[i])));
    }
  }
  setup_.restored.reset();  // the whole model: a shard keeps its part only
  is_set_up_ = true;
  return absl::OkStatus();
}

absl::Status Partition::copy_to(Checkpoint& copy) const {
  if (!is_set_up_ || !protocol_->initialised()) {
    return absl::FailedPreconditionError("checkpoint: the parameters are not initialized yet");
  }
  GRADRAIL_ASSIGN_OR_RETURN(const float* const parameters, store_->fresh_parameters(0, range().count));
  copy.parameters.assign(parameters, parameters + range().count);
  copy.state.resize(static_cast<size_t>(state_vectors(setup_.optimizer.kind)));
  for (size_t i = 0; i < copy.state.size(); ++i) {
    copy.state[i].resize(range().count);
    GRADRAIL_RETURN_IF_ERROR(store_->copy_state(static_cast<int>(i), 0, absl::MakeSpan(copy.state[i])));
  }
  // CheckpointHandler adds schema, step and time, which a shard does not have.
  copy.header = {.optimizer = setup_.optimizer,
                 .range = range(),
                 .shard_index = setup_.shard_index,
                 .shard_count = setup_.map.shard_count(),
                 .bucket_bytes = static_cast<uint32_t>(setup_.map.bucket_elements() * sizeof(float))};
  copy.header.fragment_steps.resize(setup_.map.fragment_count());
  for (uint32_t i = 0; i < bucket_count(); ++i) {
    const uint64_t version = protocol_->version(i);
    copy.header.bucket_versions.push_back(version);
    uint64_t& step = copy.header.fragment_steps[fragment(i)];
    step = std::max(step, version);
  }
  return absl::OkStatus();
}

}  // namespace gradrail::ps
