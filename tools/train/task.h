#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "absl/status/status.h"
#include "tools/train/host_plan.h"
#include "tools/train/signal_thread.h"
#include "tools/train/train_options.h"
#include "worker/trainer/trainer.h"

namespace gradrail::tools {

/// A line for people on stdout, at once; a comment begins with "# ".
void print_line(const std::string& line);
void print_comment(const std::string& line);

/// One ps task, until the run is over or `signals` has a request to stop.
/// `listening` receives the port of the control plane once it is open. `joined` receives the index of each worker that
/// has joined, in any thread; it may be empty. Lines for people go to stdout.
absl::Status run_ps(const TrainOptions& options, const HostPlan& plan, SignalThread& signals,
                    const std::function<void(uint16_t)>& listening, const std::function<void(uint32_t)>& joined = {});

/// One worker task, until it has trained its epochs or gets a signal (it then finishes its step and leaves).
/// `joined` is called once the worker is a member; it may be empty.
absl::Status run_worker(const TrainOptions& options, const HostPlan& plan, SignalThread& signals,
                        const std::function<void()>& joined = {});

/// `--ps 0`: one worker that keeps the variables itself. Otherwise as run_worker.
absl::Status run_alone(const TrainOptions& options, const HostPlan& plan, SignalThread& signals);

/// The same with a plan of their own.
absl::Status run_ps(const TrainOptions& options, SignalThread& signals, const std::function<void(uint16_t)>& listening);
absl::Status run_worker(const TrainOptions& options, SignalThread& signals);

}  // namespace gradrail::tools
