#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "absl/status/status.h"
#include "tools/host_plan.h"
#include "tools/train_options.h"
#include "worker/trainer.h"

namespace gradrail::tools {

/// One ps task, until the run is over or the process is told to stop (SIGTERM, SIGINT).
/// `listening` is told the port of the control plane once it is open. Lines for people go to stdout.
absl::Status run_ps(const TrainOptions& options, const HostPlan& plan, const std::function<void(uint16_t)>& listening);

/// One worker task, until it has trained its epochs or is told to stop (it then finishes its step and says goodbye).
absl::Status run_worker(const TrainOptions& options, const HostPlan& plan);

/// `--ps 0`: one worker that keeps the variables itself. Otherwise as run_worker.
absl::Status run_alone(const TrainOptions& options);

/// The same with a plan of their own.
absl::Status run_ps(const TrainOptions& options, const std::function<void(uint16_t)>& listening);
absl::Status run_worker(const TrainOptions& options);

}  // namespace gradrail::tools
