#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "gradrail/client.h"
#include "gradrail/clock.h"
#include "worker/models/workload.h"
#include "worker/summaries/event_file.h"
#include "worker/trainer/trainer.h"

namespace gradrail::tools {

/// A run of one worker as TensorBoard shows it.
///
/// Tags     cost and staleness/max. batch_accuracy of the last batch. examples/sec of this worker, global_step/sec.
///          accuracy on the test images, at the end. exchange/p50_ms, exchange/p99_ms and staleness/mean since the
///          previous event. bytes_in/<path>, bytes_out/<path>, fallbacks, wait_s and dropped_gradients since the start.
/// Steps    The global step.
/// Threads  Owner thread of the client.
class Summaries {
 public:
  /// Errors  Those of EventFile::create.
  static absl::StatusOr<std::unique_ptr<Summaries>> create(const std::string& folder, uint32_t every);

  /// Records a step; called after each one. Writes with every `every`th of an epoch and its last. `client`: null
  /// without a parameter server. A disk that fails ends the summaries, not the run: the log reports it.
  void step(const worker::Progress& progress, worker::Workload& workload, const Client* client);
  /// Writes the graph once, before the first step.
  void graph(absl::Span<const worker::GraphNode> nodes);
  /// `accuracy`: on the test images, with the parameters after `global_step`.
  void evaluated(uint64_t global_step, float accuracy);

 private:
  Summaries(worker::EventFile file, uint32_t every) : file_(std::move(file)), every_(every) {}
  /// Sets the begin: without it TensorBoard shows repeated steps twice.
  void begin_at(uint64_t global_step);
  void write(uint64_t global_step, const worker::Scalars& scalars);
  void check(const absl::Status& written);
  void add_exchange(const ClientStats& stats, worker::Scalars& scalars);

  worker::EventFile file_;
  const uint32_t every_;
  bool broken_ = false;
  uint64_t steps_ = 0;        ///< steps since the last event
  uint64_t global_step_ = 0;  ///< global step of the last event
  uint64_t last_step_ = 0;    ///< 0: none yet
  TimePoint written_at_ = Clock::now();
  ClientStats before_;  ///< stats at the last event
};

}  // namespace gradrail::tools
