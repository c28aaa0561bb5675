#pragma once

#include <cstddef>
#include <functional>
#include <map>
#include <string>

#include "absl/base/thread_annotations.h"
#include "base/memory.h"
#include "base/mutex.h"
#include "ps/protocol/shard_map.h"
#include "ps/store/parameter_store.h"

namespace gradrail::tree {

/// A gradient of all workers of a node, in the memory of the client.
struct NodeGradient {
  ps::ElementRange range;  ///< range in the model
  uint64_t step = 0;       ///< step of the bucket, from 1
  float rate = 0.0f;
  float weight = 1.0f;
};

/// The part of the connection to the parent that the store of a shard needs. The memory is that of the client.
/// Shapes   gradients, parameters: [elements of the model].
/// Threads  Any thread.
struct Upstream {
  float* gradients = nullptr;
  float* parameters = nullptr;
  bool is_started = false;  ///< the parent had parameters when this node joined, and they are here
  std::function<void(const NodeGradient&)> push;
  /// Offers initial values of this number of elements, stored in `parameters`.
  std::function<void(uint64_t count)> offer;
};

/// The store of one shard of a node. update() writes the mean of the gradients of the workers into the memory of the
/// client, which pushes it to the parent. The parameters that return are the result.
/// Threads  on_arrived(), end_all(): the thread of the client. The rest: owner thread of the shard.
class NodeStore final : public ps::ParameterStore, public ps::LaterResults {
 public:
  /// `range`: of the shard, in elements of the model. `on_end` is called by the destructor.
  NodeStore(const OptimizerConfig& optimizer, SharedMemory memory, ps::ElementRange range, Upstream upstream,
            std::function<void(NodeStore*)> on_end);
  ~NodeStore() override;

  // ParameterStore
  std::string where() const override { return "parent"; }
  ps::LaterResults* later_results() override { return this; }
  absl::Status copy_out(size_t offset, size_t count, float* target) override;
  absl::Status set(size_t offset, absl::Span<const float> values) override;
  /// Errors  FAILED_PRECONDITION: the result of the step before has not arrived.
  absl::Status update(size_t offset, size_t count, absl::Span<const float* const> gradients,
                      absl::Span<float* const> targets, Step step) override;
  absl::Status copy_state(int vector, size_t offset, absl::Span<float> to) override;
  absl::Status set_state(int vector, size_t offset, absl::Span<const float> values) override;

  // LaterResults
  void set_wake(std::function<void()> wake) override;
  bool try_end(size_t offset) override;

  /// Fresh parameters of the model are in the memory of the client.
  void on_arrived(ps::ElementRange arrived);
  /// The result of everything under way is there.
  void end_all();

 private:
  struct Part {
    uint64_t count = 0;
    uint64_t missing = 0;  ///< elements without a result
  };
  void begin(size_t offset, size_t count);

  const SharedMemory memory_;
  const ps::ElementRange range_;
  const Upstream upstream_;
  const std::function<void(NodeStore*)> on_end_;
  Mutex mutex_;
  std::map<uint64_t, Part> under_way_ ABSL_GUARDED_BY(mutex_);  ///< indexed by the first element in the model
  std::function<void()> wake_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace gradrail::tree
