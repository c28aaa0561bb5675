#pragma once

#include <atomic>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/memory.h"
#include "launch/placement/host_plan.h"
#include "topology/pin.h"

namespace gradrail::launch {

/// Puts the threads and the memory of one task where the host's plan wants them. A refusal is logged once, as a
/// warning: the run continues, slower perhaps.
/// Threads  bind(), bind_memory(): any, each unit from one thread. The rest: the task's main thread.
class AffinityBinder {
 public:
  using UnitMemory = std::vector<MemorySpan>;

  /// Binds the calling thread, hence all that it creates, to what --cores and --reserve leave.
  AffinityBinder(const HostPlan& plan, const TaskOptions& options);

  /// The calling thread is this unit's from now on.
  void bind(size_t unit);
  /// The calling thread, this unit's so far, may go wherever this task may: threads it creates now belong to no unit in
  /// particular.
  void unbind(size_t unit);
  /// Before any thread touches the memory.
  void bind_memory(size_t unit, const MemorySpan& memory);

  /// Lines for the summary, with where `memory` of each unit lies now:
  ///   Placed: worker/0 on cpus 0-1 (NUMA node 0, memory there), planned NIC mlx5_0
  ///   Huge pages: 0 of 12288 KiB                   verbose, and there is something large enough for one
  std::vector<std::string> summary(const std::vector<UnitMemory>& memory, bool verbose) const;

 private:
  bool binds() const { return pinner_.has_value(); }
  void refused(const absl::Status& why);
  std::string where_it_runs(size_t unit) const;
  std::string where_memory_lies(const UnitPlace& place, const UnitMemory& memory) const;

  // Set once.
  std::vector<UnitPlace> places_;
  topology::CpuSet task_cpus_;  ///< where threads of no unit may run
  bool one_node_ = false;       ///< memory can lie nowhere else: a refusal costs nothing
  std::optional<topology::Pinner> pinner_;

  // Any thread.
  std::unique_ptr<std::atomic<bool>[]> refused_;  ///< by unit: it could not be bound
  std::atomic<bool> warned_ = false;
};

}  // namespace gradrail::launch
