#include "worker/local_variables.h"

#include <utility>

#include "fmt/format.h"

namespace gradrail::worker {

LocalVariables::LocalVariables(ps::Schema schema, const ps::OptimizerConfig& optimizer)
    : schema_(std::move(schema)), optimizer_(optimizer), offsets_{0} {
  for (const ps::Tensor& tensor : schema_) offsets_.push_back(offsets_.back() + tensor.elements());
}

absl::StatusOr<std::unique_ptr<LocalVariables>> LocalVariables::create(ps::Schema schema,
                                                                       const ps::OptimizerConfig& optimizer,
                                                                       const MemoryPlacer& place) {
  std::unique_ptr<LocalVariables> made(new LocalVariables(std::move(schema), optimizer));
  std::vector<SharedMemory*> all = {&made->parameters_, &made->gradients_};
  for (int i = 0; i < ps::state_vectors(optimizer.kind); ++i) all.push_back(&made->state_[i]);
  for (SharedMemory* memory : all) {
    absl::StatusOr<SharedMemory> created = SharedMemory::create("variables", made->offsets_.back() * sizeof(float));
    if (!created.ok()) return created.status();
    *memory = *std::move(created);
    if (place) place(memory->span());
  }
  return made;
}

absl::Span<float> LocalVariables::part(SharedMemory& memory, size_t tensor_index) {
  return {reinterpret_cast<float*>(memory.data()) + offsets_[tensor_index],
          offsets_[tensor_index + 1] - offsets_[tensor_index]};
}

void LocalVariables::exchange() {
  const TimePoint begin = Clock::now();
  const auto values = [](const SharedMemory& memory) { return reinterpret_cast<float*>(memory.data()); };
  const float* gradient = values(gradients_);
  ps::apply(optimizer_, {.count = offsets_.back(),
                         .parameters = values(parameters_),
                         .state = {values(state_[0]), values(state_[1])},
                         .gradients = {&gradient, 1},
                         .update_index = ++step_});
  applying_ += Clock::now() - begin;
}

absl::StatusOr<std::vector<std::string>> LocalVariables::save_checkpoint() {
  return absl::UnimplementedError("without a parameter server nobody saves checkpoints");
}

std::vector<std::string> LocalVariables::summary(bool) const {
  const double average_us =
      std::chrono::duration<double, std::micro>(applying_).count() / static_cast<double>(std::max<uint64_t>(1, step_));
  return {fmt::format("Applied: {} updates in this process, {:.1f}us each", step_, average_us)};
}

}  // namespace gradrail::worker
