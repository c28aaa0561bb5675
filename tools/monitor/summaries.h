#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "base/clock.h"
#include "worker/client/client.h"
#include "worker/summaries/event_file.h"
#include "worker/trainer/trainer.h"

namespace gradrail::tools {

/// A run of one worker as TensorBoard shows it.
///
/// Tags     cost and staleness/max. examples/sec of this worker, global_step/sec. accuracy on the test images, at the
///          end. exchange/p50_ms, exchange/p99_ms and staleness/mean since the previous event. bytes_in/<path>,
///          bytes_out/<path>, fallbacks, wait_s and dropped_gradients since the start.
/// Steps    The global step.
/// Threads  Owner thread of the client.
class Summaries {
 public:
  /// Errors  as EventFile::create.
  static absl::StatusOr<std::unique_ptr<Summaries>> create(const std::string& folder, uint32_t every);

  /// After each step; writes with every `every`th of an epoch and its last. `client`: null without a parameter server.
  /// A disk that fails ends the summaries, not the run: the log says so.
  /// `batch_size`: examples of this worker in one step, all towers together.
  void step(const worker::Progress& progress, size_t batch_size, const worker::Client* client);
  /// A line of the run's last words: an accuracy is taken from it.
  void line(const std::string& text);

 private:
  Summaries(worker::EventFile file, uint32_t every) : file_(std::move(file)), every_(every) {}
  void write(uint64_t global_step, const worker::Scalars& scalars);
  void add_exchange(const worker::ClientStats& stats, worker::Scalars& scalars);

  worker::EventFile file_;
  const uint32_t every_;
  bool broken_ = false;
  uint64_t steps_ = 0;  ///< since the last event
  uint64_t global_step_ = 0;
  TimePoint written_at_ = Clock::now();
  worker::ClientStats before_;  ///< at the last event
};

}  // namespace gradrail::tools
