#include <algorithm>
#include <array>
#include <string_view>
#include <vector>

#include "base/check.h"
#include "gpu/compute/device_compute.h"
#include "gpu/compute/device_operations_run.h"
#include "gpu/kernels/arguments.h"
#include "gpu/kernels/formats.h"

namespace gradrail::gpu {
namespace {

using kernels::Buffer;

constexpr size_t kQuadsPerThread = 2;  // kQuadsInFlight of kernels/update.cuh

// The order is that of GradientFormat.
#define GRADRAIL_KERNELS_OF(rule)                                                                      \
  {                                                                                                    \
    "gradrail_update_" rule "_fp32", "gradrail_update_" rule "_bf16", "gradrail_update_" rule "_int8", \
        "gradrail_update_" rule "_int4"                                                                \
  }
// The order is that of UpdateRule.
constexpr std::array<std::array<const char*, 4>, 7> kUpdateKernels = {
    {GRADRAIL_KERNELS_OF("sgd"), GRADRAIL_KERNELS_OF("momentum"), GRADRAIL_KERNELS_OF("nesterov"),
     GRADRAIL_KERNELS_OF("adam"), GRADRAIL_KERNELS_OF("mean"), GRADRAIL_KERNELS_OF("collect"),
     GRADRAIL_KERNELS_OF("delayed_nesterov")}};
#undef GRADRAIL_KERNELS_OF

bool is_in_blocks(GradientFormat format) { return format == GradientFormat::int8 || format == GradientFormat::int4; }

/// Size of the elements that a kernel reads in one load.
size_t aligned_bytes(GradientFormat format) {
  return format == GradientFormat::fp32 ? sizeof(float) : sizeof(kernels::Bits16);
}

size_t state_vectors(UpdateRule rule) {
  // The values are those of ps::state_vectors(), which this folder may not include. collect touches the first of its
  // two vectors only.
  if (rule == UpdateRule::sgd || rule == UpdateRule::mean) return 0;
  return rule == UpdateRule::adam || rule == UpdateRule::delayed_nesterov ? 2 : 1;
}

kernels::Run update_run(const UpdateArguments& a) {
  // All buffers that one thread touches must agree on the alignment: the worst one decides.
  std::vector<Buffer> buffers = {{a.parameters}};
  for (size_t i = 0; i < state_vectors(a.rule); ++i) buffers.push_back({a.state[i]});
  for (const float* target : a.targets) buffers.push_back({target});
  if (is_in_blocks(a.format)) {
    kernels::Run run = kernels::run_of(a.count, buffers);
    // A quad is within one half of a whole block.
    const kernels::Count in_whole_blocks = a.count / kernels::kBlock * (kernels::kBlock / 4);
    run.quads = run.head == 0 ? std::min(run.quads, in_whole_blocks) : 0;
    run.head = 0;
    return run;
  }
  for (const void* gradient : a.gradients) buffers.push_back({gradient, aligned_bytes(a.format)});
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
  const char* const kernel = kUpdateKernels[static_cast<size_t>(a.rule)][static_cast<size_t>(a.format)];
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

absl::StatusOr<cuda::Function> DeviceCompute::pack_kernel(GradientFormat format) {
  constexpr const char* kPackKernels[] = {"gradrail_pack_bf16", "gradrail_pack_int8", "gradrail_pack_int4"};
  GRADRAIL_CHECK(format != GradientFormat::fp32);
  return module_.find(kPackKernels[static_cast<size_t>(format) - 1]);
}

cuda::Result DeviceCompute::pack(const Stream& stream, cuda::Function kernel, GradientFormat format, size_t count,
                                 const float* gradient, float* rest, void* packed) const {
  kernels::PackArguments arguments = {.run = {.count = count}, .gradient = gradient, .rest = rest, .packed = packed};
  void* addresses[] = {&arguments};
  context_->make_current();
  if (is_in_blocks(format)) {
    // A thread has 64 elements, so that 1 MiB of gradients has 4,096 threads. Blocks of one warp are then on 128 of the
    // 132 multiprocessors of an H100; blocks of kThreadsPerBlock would be on 16.
    constexpr unsigned kWarp = 32;
    return enqueue(stream, kernel, kernels::Blocks<127>::block_count(count), addresses, kWarp);
  }
  arguments.run = kernels::run_of(count, {Buffer{gradient}, Buffer{rest}, Buffer{packed, aligned_bytes(format)}});
  return enqueue(stream, kernel, kernels::threads_for(arguments.run), addresses);
}

}  // namespace gradrail::gpu
