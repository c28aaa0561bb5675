#include "bench/suites/gpu_apply_buffers.h"

#include <bit>
#include <cmath>
#include <cstring>

#include "base/status.h"
#include "fmt/format.h"
#include "ps/optimizer/optimizer.h"
#include "ps/protocol/optimizer_settings.h"
#include "ps/protocol/push_format.h"
#include "ps/store/gpu_format.h"

namespace gradrail::bench {
namespace {

using gpu::UpdateRule;

// The two bias corrections of adam differ at this step: β1^1000 is 0 in fp32, β2^1000 is 0.37.
constexpr uint64_t kUpdateIndex = 1000;

OptimizerConfig config_of(UpdateRule rule) { return {.kind = static_cast<OptimizerKind>(rule)}; }

size_t state_vectors(UpdateRule rule) {
  return static_cast<size_t>(ps::state_vectors(static_cast<OptimizerKind>(rule)));
}

/// Multiples of 1/128 in [0.5, 1.5), which bf16 holds exactly; another run of them for each buffer. As good as random
/// for a memory, and soon made.
std::vector<float> values(size_t count, uint32_t buffer) {
  std::vector<float> result(count);
  for (size_t i = 0; i < count; ++i) {
    // Multiplicative hashing (Knuth, vol. 3, 6.4): 2654435761 is a prime near 2^32/φ, and the high bits are well mixed.
    const uint32_t mixed = (static_cast<uint32_t>(i) + buffer * 7919u) * 2654435761u;
    result[i] = 0.5f + static_cast<float>(mixed >> 25) / 128.0f;
  }
  return result;
}

/// Shapes  packed_bytes() of the values, rounded up to floats.
std::vector<float> packed(PushFormat format, const std::vector<float>& gradient) {
  if (format == PushFormat::fp32) return gradient;
  std::vector<float> rest(gradient.size());
  std::vector<float> result((ps::packed_bytes(gradient.size(), format) + sizeof(float) - 1) / sizeof(float));
  ps::pack(format, gradient, rest.data(), result.data());
  return result;
}

gpu::UpdateArguments coefficients(const UpdateCase& c) {
  const OptimizerConfig config = config_of(c.rule);
  // The correction is in double, as in ps::apply: the check compares bits.
  const auto correction = [](float beta) { return 1.0 - std::pow(static_cast<double>(beta), kUpdateIndex); };
  const double adam_rate =
      static_cast<double>(config.learning_rate) * std::sqrt(correction(config.beta2)) / correction(config.beta1);
  return {.rule = c.rule,
          .format = ps::gpu_format(c.format),
          .gradient_scale = 1.0f / static_cast<float>(c.gradients),
          .rate = c.rule == UpdateRule::adam ? static_cast<float>(adam_rate) : config.learning_rate,
          .momentum = config.momentum,
          .beta1 = config.beta1,
          .one_minus_beta1 = 1.0f - config.beta1,
          .beta2 = config.beta2,
          .one_minus_beta2 = 1.0f - config.beta2,
          .epsilon = config.epsilon};
}

/// The parameters after one ps::apply.
std::vector<float> expected(const UpdateCase& c, size_t count) {
  std::vector<float> parameters = values(count, 0);
  std::vector<float> state[2];
  // The numbers of the buffers, here and in create(): 0 parameters, 1 and 2 state, from 3 gradients.
  for (size_t i = 0; i < state_vectors(c.rule); ++i) state[i] = values(count, static_cast<uint32_t>(1 + i));
  std::vector<std::vector<float>> gradients;
  std::vector<const float*> addresses;
  for (size_t i = 0; i < c.gradients; ++i) {
    gradients.push_back(packed(c.format, values(count, static_cast<uint32_t>(3 + i))));
    addresses.push_back(gradients.back().data());
  }
  ps::apply(config_of(c.rule), {.count = count,
                                .parameters = parameters.data(),
                                .state = {state[0].data(), state[1].data()},
                                .gradients = addresses,
                                .format = c.format,
                                .update_index = kUpdateIndex});
  return parameters;
}

/// Compares bits: NaN differs from itself as a number, and −0 equals 0.
uint64_t differences(const std::vector<float>& a, const std::vector<float>& b) {
  uint64_t count = 0;
  for (size_t i = 0; i < a.size(); ++i) count += std::bit_cast<uint32_t>(a[i]) != std::bit_cast<uint32_t>(b[i]) ? 1 : 0;
  return count;
}

}  // namespace

std::vector<UpdateCase> update_cases() {
  return {{.rule = UpdateRule::sgd},
          {.rule = UpdateRule::momentum},
          {.rule = UpdateRule::nesterov},
          {.rule = UpdateRule::adam},
          {.rule = UpdateRule::sgd, .gradients = 4},
          {.rule = UpdateRule::sgd, .gradients = 4, .format = PushFormat::bf16, .targets = 1},
          {.rule = UpdateRule::adam, .format = PushFormat::bf16},
          {.rule = UpdateRule::adam, .gradients = 4, .targets = 1}};
}

std::vector<UpdateCase> format_cases() {
  std::vector<UpdateCase> cases;
  for (const PushFormat format : kPackedFormats) {
    cases.push_back({.rule = UpdateRule::sgd, .format = format});
    cases.push_back({.rule = UpdateRule::sgd, .gradients = 4, .format = format});
    // update_cases() has the case of bf16.
    if (format != PushFormat::bf16) cases.push_back({.rule = UpdateRule::adam, .format = format});
  }
  return cases;
}

std::string describe(const UpdateCase& c) {
  return fmt::format("{}, {} gradient{} {}, {} target{}", optimizer_name(static_cast<OptimizerKind>(c.rule)),
                     c.gradients, c.gradients == 1 ? "" : "s", push_format_name(c.format), c.targets,
                     c.targets == 1 ? "" : "s");
}

double gradient_bytes(PushFormat format) {
  // A multiple of a block.
  return static_cast<double>(ps::packed_bytes(ps::kTopkChunk, format)) / static_cast<double>(ps::kTopkChunk);
}

double bytes_per_element(const UpdateCase& c) {
  const size_t read_and_written = 2 * sizeof(float) * (1 + state_vectors(c.rule));
  return static_cast<double>(read_and_written + c.targets * sizeof(float)) +
         static_cast<double>(c.gradients) * gradient_bytes(c.format);
}

absl::StatusOr<UpdateBuffers> UpdateBuffers::create(gpu::Compute& compute, const UpdateCase& c, size_t count) {
  UpdateBuffers buffers;
  buffers.count_ = count;
  // The first error is stored and the rest is still tried: create() checks one status at its end.
  absl::Status status;
  const auto add = [&](const void* from, size_t bytes) -> std::byte* {
    absl::StatusOr<std::unique_ptr<gpu::Memory>> memory = compute.allocate(bytes);
    if (!memory.ok()) {
      status.Update(memory.status());
      return nullptr;
    }
    if (from != nullptr) compute.upload((*memory)->data(), from, bytes);
    // Wait for the upload: `from` may be a temporary of the caller.
    status.Update(compute.finish());
    buffers.memories_.push_back(*std::move(memory));
    return buffers.memories_.back()->data();
  };
  const auto add_floats = [&](uint32_t buffer) {
    return reinterpret_cast<float*>(add(values(count, buffer).data(), count * sizeof(float)));
  };
  buffers.parameters_ = add_floats(0);
  for (size_t i = 0; i < state_vectors(c.rule); ++i) buffers.state_[i] = add_floats(static_cast<uint32_t>(1 + i));
  for (size_t i = 0; i < c.gradients; ++i) {
    const std::vector<float> gradient = packed(c.format, values(count, static_cast<uint32_t>(3 + i)));
    buffers.gradients_.push_back(add(gradient.data(), gradient.size() * sizeof(float)));
  }
  for (size_t i = 0; i < c.targets; ++i) {
    buffers.targets_.push_back(reinterpret_cast<float*>(add(nullptr, count * sizeof(float))));
  }
  buffers.copied_ = add(nullptr, count * sizeof(float));
  if (!status.ok()) return status;
  return buffers;
}

absl::StatusOr<uint64_t> UpdateBuffers::check(gpu::Compute& compute, const UpdateCase& c) {
  update(compute, c);
  const std::vector<float> wanted = expected(c, count_);
  uint64_t wrong = 0;
  std::vector<float*> results = targets_;
  results.push_back(parameters_);
  for (const float* result : results) {
    std::vector<float> found(count_);
    compute.download(found.data(), result, count_ * sizeof(float));
    GRADRAIL_RETURN_IF_ERROR(compute.finish());
    wrong += differences(found, wanted);
  }
  return wrong;
}

void UpdateBuffers::update(gpu::Compute& compute, const UpdateCase& c) {
  gpu::UpdateArguments arguments = coefficients(c);
  // The coefficients do not change from update to update, so that all timed updates cost the same.
  arguments.count = count_;
  arguments.parameters = parameters_;
  arguments.state[0] = state_[0];
  arguments.state[1] = state_[1];
  arguments.gradients = gradients_;
  arguments.targets = targets_;
  compute.update(arguments);
}

/// A device's addresses are those of the process: the driver detects that both are in the same memory.
void UpdateBuffers::copy(gpu::Compute& compute) { compute.upload(copied_, parameters_, count_ * sizeof(float)); }

}  // namespace gradrail::bench
