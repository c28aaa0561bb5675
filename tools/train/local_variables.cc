#include "tools/train/local_variables.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "base/status.h"
#include "fmt/format.h"
#include "ps/optimizer/optimizer.h"

namespace gradrail::tools {

LocalVariables::LocalVariables(Schema schema, const OptimizerConfig& optimizer)
    : schema_(std::move(schema)),
      optimizer_(optimizer),
      offsets_{0},
      state_(static_cast<size_t>(ps::state_vectors(optimizer.kind))),
      applied_(schema_.size()) {
  for (const Tensor& tensor : schema_) offsets_.push_back(offsets_.back() + tensor.elements());
}

absl::StatusOr<std::unique_ptr<LocalVariables>> LocalVariables::create(Schema schema, const OptimizerConfig& optimizer,
                                                                       const MemoryBinder& place) {
  std::unique_ptr<LocalVariables> made(new LocalVariables(std::move(schema), optimizer));
  std::vector<SharedMemory*> all = {&made->parameters_, &made->gradients_};
  for (SharedMemory& state : made->state_) all.push_back(&state);
  for (SharedMemory* memory : all) {
    GRADRAIL_ASSIGN_OR_RETURN(SharedMemory created,
                              SharedMemory::create("variables", made->offsets_.back() * sizeof(float)));
    *memory = std::move(created);
    // Placement precedes the first touch, which would fix the NUMA node of each page.
    if (place) place(memory->span());
  }
  return made;
}

absl::Span<float> LocalVariables::part(SharedMemory& memory, size_t tensor_index) {
  return {reinterpret_cast<float*>(memory.data()) + offsets_[tensor_index],
          offsets_[tensor_index + 1] - offsets_[tensor_index]};
}

void LocalVariables::ready(size_t tensor_index) {
  GRADRAIL_CHECK(!applied_[tensor_index]);
  applied_[tensor_index] = true;
  const TimePoint begin = Clock::now();
  const absl::Span<float> parameters = part(parameters_, tensor_index);
  const float* gradient = part(gradients_, tensor_index).data();
  ps::ApplyArguments arguments{.count = parameters.size(),
                               .parameters = parameters.data(),
                               .gradients = {&gradient, 1},
                               // Optimizers count updates from 1.
                               .update_index = step_ + 1};
  for (size_t i = 0; i < state_.size(); ++i) arguments.state[i] = part(state_[i], tensor_index).data();
  ps::apply(optimizer_, arguments);
  applying_ += Clock::now() - begin;
}

void LocalVariables::exchange() {
  for (size_t i = 0; i < applied_.size(); ++i) {
    // A workload may never call ready() for a tensor: the update still covers each tensor once.
    if (!applied_[i]) ready(i);
  }
  std::fill(applied_.begin(), applied_.end(), false);
  ++step_;
}

std::vector<std::string> LocalVariables::summary(bool) const {
  const double average_us =
      std::chrono::duration<double, std::micro>(applying_).count() / static_cast<double>(std::max<uint64_t>(1, step_));
  return {fmt::format("Applied: {} updates in this process, {:.1f}us each", step_, average_us)};
}

}  // namespace gradrail::tools
