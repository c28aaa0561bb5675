#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "base/memory.h"
#include "ps/protocol/mode.h"
#include "ps/protocol/optimizer_settings.h"

namespace gradrail::gpu {
class Compute;
}

namespace gradrail::ps {

class StoreDevice;

/// The part of a store whose update() and set() have only begun when they return, because another task computes the
/// result (worker/tree). Answers of a run wait for its result.
/// Threads  Owner of the store.
class LaterResults {
 public:
  virtual ~LaterResults() = default;
  /// Sets the function that the store calls when a result has arrived, from any thread.
  virtual void set_wake(std::function<void()> wake) = 0;
  /// True: nothing is under way in the run that begins at `offset`. A result that has arrived is then in
  /// ParameterStore::parameters().
  virtual bool try_end(size_t offset) = 0;
};

/// The parameters of a shard, the optimizer's state and their update. The update runs in host memory by apply(), or in
/// the memory of a GPU by its kernels, with the same bits.
/// Units    Offsets and counts are elements of the shard's range.
/// Errors   A store in host memory returns none. A lost device has lost its parameters: no later call succeeds.
/// Threads  One owner.
class ParameterStore {
 public:
  virtual ~ParameterStore() = default;
  ParameterStore(const ParameterStore&) = delete;
  ParameterStore& operator=(const ParameterStore&) = delete;

  /// Place of the parameters for logs: "host" or "GPU 0 (…)".
  virtual std::string where() const = 0;
  /// The GPU memory of the store; null when the parameters are in host memory. The same on every call. A function here,
  /// not a cast: ablation wraps a store and passes the memory of that on.
  virtual StoreDevice* device() { return nullptr; }
  /// Null when the results of update() and set() are there on return. The same on every call.
  virtual LaterResults* later_results() { return nullptr; }
  /// Whether answers leave with parameters (ps/store/ablation.h). The result is the same on every call.
  virtual bool returns_parameters() const { return true; }

  /// The host memory from which answers are sent, to be registered at transports. fresh_parameters() fills it.
  MemorySpan parameters() const { return parameters_; }
  /// A run of the parameters in that memory. A store on a device first downloads what has changed there since the last
  /// call: updates for workers on devices need no copy. The values can change with the next update.
  virtual absl::StatusOr<const float*> fresh_parameters(size_t offset, size_t /*count*/) {
    return mutable_parameters() + offset;
  }

  /// Copies a run of parameters to a target as update() takes them. With a StoreDevice the copy has only begun when
  /// the call returns.
  virtual absl::Status copy_out(size_t offset, size_t count, float* target) = 0;
  /// Overwrites a run of parameters; the state stays. `values` may be anywhere where gradients may be.
  virtual absl::Status set(size_t offset, absl::Span<const float> values) = 0;
  /// The part of an update that is not in the gradients.
  struct Step {
    uint64_t index = 1;                    ///< counts the updates of this run from 1
    float rate = kAgreedRate;              ///< value of ApplyArguments::rate
    PushFormat format = PushFormat::fp32;  ///< format of the gradients, ApplyArguments::format
    absl::Span<const float> weights = {};  ///< weights of the gradients in the mean; empty: equal. In host memory only
    float weight = 1.0f;                   ///< weight of the mean: the sum of weights. For stores with later_results()
  };
  /// Updates a run as apply() does (ps/optimizer/optimizer.h), with any number of gradients and targets. With a
  /// StoreDevice the update has only begun when the call returns: StoreDevice::has_ended(). Later calls use its
  /// result.
  virtual absl::Status update(size_t offset, size_t count, absl::Span<const float* const> gradients,
                              absl::Span<float* const> targets, Step step) = 0;

  /// Whether the last update() has left finite parameters, and a finite state, in its run. True as well where the store
  /// does not look: on a device, and with parts of the update left out.
  bool last_is_finite() const { return last_is_finite_; }

  /// Read and write a run of one state vector, for checkpoints and backups.
  virtual absl::Status copy_state(int vector, size_t offset, absl::Span<float> to) = 0;
  virtual absl::Status set_state(int vector, size_t offset, absl::Span<const float> values) = 0;

 protected:
  /// `parameters` belongs to the derived class and holds `count` elements.
  ParameterStore(const OptimizerConfig& optimizer, MemorySpan parameters, size_t count)
      : optimizer_(optimizer), count_(count), parameters_(parameters) {}
  float* mutable_parameters() const { return reinterpret_cast<float*>(parameters_.data); }

  const OptimizerConfig optimizer_;
  const size_t count_;
  bool last_is_finite_ = true;

 private:
  const MemorySpan parameters_;
};

/// Makes a store of `count` elements in the thread that will own it; all values are zero. The store calls `place`,
/// which may be empty, with its memory before the first access to it.
using StoreMaker = std::function<absl::StatusOr<std::unique_ptr<ParameterStore>>(
    const OptimizerConfig& optimizer, size_t count, const MemoryBinder& place)>;

/// A StoreMaker for host memory.
/// Errors  RESOURCE_EXHAUSTED: no memory.
absl::StatusOr<std::unique_ptr<ParameterStore>> make_host_store(const OptimizerConfig& optimizer, size_t count,
                                                                const MemoryBinder& place);

/// Makes a store with parameters and state in the memory of `device`, and memory of the host for fresh_parameters().
/// Errors  As gpu::Compute, from every call.
absl::StatusOr<std::unique_ptr<ParameterStore>> make_device_store(std::unique_ptr<gpu::Compute> device,
                                                                  const OptimizerConfig& optimizer, size_t count,
                                                                  const MemoryBinder& place);

/// The driver's number of the GPU with this name, "gpu:N"; nullopt for "host".
/// Errors  INVALID_ARGUMENT: not such a name.
absl::StatusOr<std::optional<int>> device_ordinal(const std::string& device);

/// Returns the maker for a device by its name: "host" or "gpu:N", where N is the driver's number. Opens a GPU once to
/// check that it can be used.
/// Errors  INVALID_ARGUMENT: not such a name. Otherwise those of gpu::open_device.
absl::StatusOr<StoreMaker> store_maker(const std::string& device);

/// Zeroed shared memory for `count` parameters, for the makers above; `place` is called before the first access.
absl::StatusOr<SharedMemory> allocate_parameters(size_t count, const MemoryBinder& place);

}  // namespace gradrail::ps
