#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "gradrail/client.h"
#include "worker/models/workload.h"
#include "worker/trainer/checkpoint_schedule.h"
#include "worker/trainer/variables.h"

namespace gradrail::worker {

/// The format of a step's report.
enum class StepLine {
  kEpochs,  ///< Step: 101,  Epoch:  1,  Batch: 100 of 550,  Cost: 9.1234,  AvgTime: 3.21ms
  kRate,    ///< 2026-11-21 04:05:06.789012: step 100, loss = 0.12 (12345.6 examples/sec; 0.004 sec/batch)
};

struct TrainerOptions {
  uint32_t epochs = 20;
  uint64_t seed = 1;
  uint32_t log_every = 100;  ///< batches between two lines, as in the tutorials
  SaveEvery save_every;      ///< chief, beside the end
  bool verbose = false;      ///< more lines in the summary
  StepLine step_line = StepLine::kEpochs;
  size_t towers = 1;  ///< kRate counts a step as so many batches, as the multi-GPU tutorial does
};

/// State of one step of training for a console.
struct Progress {
  uint64_t global_step = 0;
  uint32_t epoch = 0;  ///< epoch, from 1
  uint32_t epoch_count = 0;
  size_t batch = 0;  ///< batch, from 1
  size_t batch_count = 0;
  float cost = 0.0f;
};

/// Outputs of a trainer. Each may be empty.
struct TrainerOutput {
  std::function<void(const std::string&)> line;
  std::function<void(const Progress&)> progress;  ///< called after every step
  /// The share of the test images, in [0, 1], after the last step; not called for a model without classes.
  std::function<void(uint64_t global_step, float accuracy)> evaluated;
  std::function<std::vector<std::string>()> more;  ///< lines for the end of the summary
};

/// Trains one worker's share to the end: the loop of the tutorials, with their lines.
///
///   Variables initialized ...
///   Step: 101,  Epoch:  1,  Batch: 100 of 550,  Cost: 9.1234,  AvgTime: 3.21ms
///   Test-Accuracy: 0.65
///   Total Time: 12.34s
///   Final Cost: 0.9876
///   Parameter-Hash: <hex>, from the chief
///   done
///
/// StepLine::kRate has its own form of the second line. Instead of the first and the last line it has this one, before
/// the accuracy.
///
///   Done training for 20 epochs, 11000 steps.
///
/// A true `stop` ends the run after the step under way; the worker reports this and leaves the ps.
/// Errors   Those of Client::wait. Those of Workload::step; the ps receives them, and this worker is lost for the
///          others.
/// Threads  Owner thread of the variables.
absl::Status train(Variables& variables, Workload& workload, const TrainerOptions& options, const TrainerOutput& output,
                   const std::atomic<bool>& stop);
absl::Status train(Client& client, Workload& workload, const TrainerOptions& options, const TrainerOutput& output,
                   const std::atomic<bool>& stop);

/// SHA-256 over all parameters in schema order, little-endian fp32, in hex.
std::string parameter_hash(Variables& variables);
std::string parameter_hash(Client& client);

}  // namespace gradrail::worker
