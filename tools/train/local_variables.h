#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/memory.h"
#include "gradrail/clock.h"
#include "gradrail/optimizer.h"
#include "worker/trainer/variables.h"

namespace gradrail::tools {

/// Variables in this process: no parameter server, no transport. The optimizer is the same, so the bits equal those
/// that one worker gets from a server.
class LocalVariables final : public worker::Variables {
 public:
  /// `place` receives all memory before any thread touches it; may be empty.
  /// Errors  RESOURCE_EXHAUSTED: no memory.
  static absl::StatusOr<std::unique_ptr<LocalVariables>> create(Schema schema, const OptimizerConfig& optimizer,
                                                                const MemoryBinder& place);

  const Schema& schema() const override { return schema_; }
  absl::Span<float> parameters(size_t tensor_index) override { return part(parameters_, tensor_index); }
  absl::Span<float> gradients(size_t tensor_index) override { return part(gradients_, tensor_index); }
  absl::Status start() override { return absl::OkStatus(); }
  /// Applies the gradient immediately, while the rest of the step is being computed.
  void ready(size_t tensor_index) override;
  /// Applies what is left.
  void exchange() override;
  absl::Status wait() override { return absl::OkStatus(); }
  uint64_t global_step() const override { return step_; }
  uint64_t position() const override { return step_; }
  absl::Status finish_steps() override { return absl::OkStatus(); }
  absl::Status pull_final() override { return absl::OkStatus(); }
  absl::Status pull() override { return absl::OkStatus(); }
  std::vector<std::string> summary(bool verbose) const override;
  absl::Status leave() override { return absl::OkStatus(); }
  absl::StatusOr<bool> leave_unless_last() override { return true; }
  absl::Status give_up(const std::string&) override { return absl::OkStatus(); }

  std::vector<MemorySpan> memory() const { return {parameters_.span(), gradients_.span()}; }

 private:
  LocalVariables(Schema schema, const OptimizerConfig& optimizer);
  absl::Span<float> part(SharedMemory& memory, size_t tensor_index);

  const Schema schema_;
  const OptimizerConfig optimizer_;
  std::vector<size_t> offsets_;  // offsets of each tensor in elements, and the end of the last one
  SharedMemory parameters_, gradients_;
  std::vector<SharedMemory> state_;
  std::vector<bool> applied_;  // tensors applied in this step
  uint64_t step_ = 0;
  Duration applying_ = Duration::zero();
};

}  // namespace gradrail::tools
