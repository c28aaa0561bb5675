#include <algorithm>
#include <array>
#include <string_view>
#include <vector>

#include "base/check.h"
#include "gpu/compute/device_compute.h"
#include "gpu/compute/device_operations_run.h"
#include "gpu/kernels/arguments.h"

namespace gradrail::gpu {
namespace {

using kernels::Buffer;

constexpr size_t kQuadsPerThread = 2;  // kQuadsInFlight of kernels/update.cuh

// In the order of UpdateRule.
constexpr std::array<std::array<const char*, 2>, 7> kUpdateKernels = {{
    {"gradrail_update_sgd_f32", "gradrail_update_sgd_bf16"},
    {"gradrail_update_momentum_f32", "gradrail_update_momentum_bf16"},
    {"gradrail_update_nesterov_f32", "gradrail_update_nesterov_bf16"},
    {"gradrail_update_adam_f32", "gradrail_update_adam_bf16"},
    {"gradrail_update_mean_f32", "gradrail_update_mean_bf16"},
    {"gradrail_update_collect_f32", "gradrail_update_collect_bf16"},
    {"gradrail_update_delayed_nesterov_f32", "gradrail_update_delayed_nesterov_bf16"},
}};

size_t state_vectors(UpdateRule rule) {
  // As ps::state_vectors(), which this folder may not include. collect touches the first of its two vectors only.
  if (rule == UpdateRule::sgd || rule == UpdateRule::mean) return 0;
  return rule == UpdateRule::adam || rule == UpdateRule::delayed_nesterov ? 2 : 1;
}

kernels::Run update_run(const UpdateArguments& a) {
  // All buffers that one thread touches must agree on the alignment: the worst one decides.
  std::vector<Buffer> buffers = {{a.parameters}};
  for (size_t i = 0; i < state_vectors(a.rule); ++i) buffers.push_back({a.state[i]});
  for (const float* target : a.targets) buffers.push_back({target});
  const size_t gradient_bytes = a.gradients_are_bf16 ? sizeof(kernels::Bits16) : sizeof(float);
  for (const void* gradient : a.gradients) buffers.push_back({gradient, gradient_bytes});
  return kernels::run_of(a.count, buffers);
}

kernels::UpdateArguments update_arguments(const UpdateArguments& a) {
  kernels::UpdateArguments result = {.run = update_run(a),
                                     .parameters = a.parameters,
                                     .state = {a.state[0], a.state[1]},
                                     .gradient_count = static_cast<kernels::Bits32>(a.gradients.size()),
                                     .target_count = static_cast<kernels::Bits32>(a.targets.size()),
                                     .gradient_scale = a.gradient_scale,
                                     .rate = a.rate,
                                     .momentum = a.momentum,
                                     .momentum_share = a.momentum_share,
                                     .beta1 = a.beta1,
                                     .one_minus_beta1 = a.one_minus_beta1,
                                     .beta2 = a.beta2,
                                     .one_minus_beta2 = a.one_minus_beta2,
                                     .epsilon = a.epsilon,
                                     .decays = a.decays ? 1u : 0u,
                                     .decay = a.decay,
                                     .shrink = a.shrink};
  std::copy(a.gradients.begin(), a.gradients.end(), result.gradients);
  std::copy(a.targets.begin(), a.targets.end(), result.targets);
  return result;
}

}  // namespace

void DeviceCompute::update(const UpdateArguments& a) {
  static_assert(kMaxBuffers == kernels::kMaxBuffers);
  GRADRAIL_CHECK(!a.gradients.empty() && a.gradients.size() <= kMaxBuffers && a.targets.size() <= kMaxBuffers);
  const kernels::UpdateArguments arguments = update_arguments(a);
  const char* const kernel = kUpdateKernels[static_cast<size_t>(a.rule)][a.gradients_are_bf16 ? 1 : 0];
  launch(kernel, kernels::threads_for(arguments.run, kQuadsPerThread), arguments);
}

void DeviceCompute::sum(absl::Span<const float* const> sources, size_t count, float scale, float* target) {
  GRADRAIL_CHECK(!sources.empty() && sources.size() <= kMaxBuffers);
  std::vector<Buffer> buffers = {{target}};
  for (const float* source : sources) buffers.push_back({source});
  kernels::SumArguments arguments = {.run = kernels::run_of(count, buffers),
                                     .source_count = static_cast<kernels::Bits32>(sources.size()),
                                     .scale = scale,
                                     .target = target};
  std::copy(sources.begin(), sources.end(), arguments.sources);
  launch("gradrail_sum", kernels::threads_for(arguments.run), arguments);
}

cuda::Result DeviceCompute::pack_bf16(const Stream& stream, cuda::Function kernel, size_t count, const float* gradient,
                                      float* rest, uint16_t* packed) const {
  kernels::PackBf16Arguments arguments = {
      .run = kernels::run_of(count, {Buffer{gradient}, Buffer{rest}, Buffer{packed, sizeof(uint16_t)}}),
      .gradient = gradient,
      .rest = rest,
      .packed = packed};
  void* addresses[] = {&arguments};
  context_->make_current();
  return enqueue(stream, kernel, kernels::threads_for(arguments.run), addresses);
}

void DeviceCompute::from_bf16(size_t count, const uint16_t* source, float* target) {
  const kernels::FromBf16Arguments arguments = {
      .run = kernels::run_of(count, {Buffer{source, sizeof(uint16_t)}, Buffer{target}}),
      .source = source,
      .target = target};
  launch("gradrail_from_bf16", kernels::threads_for(arguments.run), arguments);
}

}  // namespace gradrail::gpu
