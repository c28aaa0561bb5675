#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "absl/status/status.h"
#include "launch/placement/host_plan.h"
#include "launch/task/signal_thread.h"
#include "launch/task/task_options.h"

namespace gradrail::launch {

/// What the two kinds of tasks do once they are started.
struct TaskBodies {
  /// One ps task, until the run is over or `signals` has a request to stop. `listening` receives the port of the control
  /// plane once it is open. `joined` receives the index of each worker that has joined, in any thread; it may be empty.
  std::function<absl::Status(const TaskOptions& options, const HostPlan& plan, SignalThread& signals,
                             const std::function<void(uint16_t port)>& listening,
                             const std::function<void(uint32_t worker)>& joined)>
      run_ps;
  /// One worker task, until its work is done or `signals` has a request to stop. `joined` is called once the worker is a
  /// member; it may be empty. With trains_alone() there is no ps.
  std::function<absl::Status(const TaskOptions& options, const HostPlan& plan, SignalThread& signals,
                             const std::function<void()>& joined)>
      run_worker;
  /// Whether a worker reports a step by this line.
  std::function<bool(const std::string& line)> is_step_line;
};

}  // namespace gradrail::launch
