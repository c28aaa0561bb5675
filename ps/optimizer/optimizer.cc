#include "ps/optimizer/optimizer.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstdlib>

#include "absl/container/inlined_vector.h"
#include "base/check.h"
#include "base/log.h"
#include "ps/optimizer/isa.h"

namespace gradrail::ps {
namespace {

// The order is that of Isa; the names are also the values of GRADRAIL_ISA.
constexpr std::array<std::string_view, 3> kIsaNames = {"generic", "avx2", "avx512"};

// Bytes of one buffer from which targets bypass the cache. Gradient, parameters and target together are then 48 MiB,
// more than a core's share of any last-level cache. A line written through the cache would be fetched first and evicted
// before its reader reads it. Measured with 32 MiB of L3: +20–35 % from 16 MiB on without a reader, +5–20 % with one
// that reads the whole target afterwards. Below 8 MiB a reader loses up to half.
constexpr size_t kBypassCacheBytes = size_t{16} << 20;

bool bypass_cache(const ApplyArguments& a) {
  return !a.targets.empty() && std::max(a.count, a.pass_count) >= kBypassCacheBytes / sizeof(float);
}

bool is_torch(OptimizerKind kind) { return kind == OptimizerKind::adamw || kind == OptimizerKind::torch_adam; }
bool is_adam(OptimizerKind kind) { return kind == OptimizerKind::adam || is_torch(kind); }

/// Steps for each update of the momentum. Without a run, as in a program that trains alone, this is 1.
uint32_t momentum_every(const OptimizerConfig& config) { return std::max(1u, config.momentum_every); }

/// √(1−β2^t) in double: 1−β2^t cancels in float for small t.
double root_of_correction2(const OptimizerConfig& config, uint64_t update_index) {
  return std::sqrt(1.0 - std::pow(static_cast<double>(config.beta2), static_cast<double>(update_index)));
}

float adam_rate(const OptimizerConfig& config, float rate, uint64_t update_index) {
  const double correction1 = 1.0 - std::pow(static_cast<double>(config.beta1), static_cast<double>(update_index));
  return static_cast<float>(static_cast<double>(rate) * root_of_correction2(config, update_index) / correction1);
}

/// PyTorch adds ε to √(v/(1−β2^t)). That is the form of adam with a smaller ε.
float epsilon_of(const OptimizerConfig& config, uint64_t update_index) {
  if (!is_torch(config.kind)) return config.epsilon;
  return static_cast<float>(static_cast<double>(config.epsilon) * root_of_correction2(config, update_index));
}

ApplyKernel kernel_for(const OptimizerConfig& config, uint64_t update_index, const KernelTable& table) {
  switch (config.kind) {
    case OptimizerKind::sgd:
      return table.sgd;
    case OptimizerKind::momentum:
      return table.momentum;
    case OptimizerKind::nesterov:
      return table.nesterov;
    case OptimizerKind::adam:
    case OptimizerKind::adamw:
    case OptimizerKind::torch_adam:
      return table.adam;
    case OptimizerKind::mean:
      return table.mean;
    case OptimizerKind::delayed_nesterov:
      return updates_momentum(config, update_index) ? table.delayed_nesterov : table.collect;
  }
  GRADRAIL_CHECK(false);
}

/// The factors of weighted gradients; empty: their sum has one factor.
using Shares = absl::InlinedVector<float, kMaxGradients>;

Shares shares_of(absl::Span<const float* const> gradients, absl::Span<const float> weights) {
  GRADRAIL_CHECK(weights.empty() || weights.size() == gradients.size());
  double total = 0.0;
  for (const float weight : weights) total += weight;
  Shares shares;
  for (const float weight : weights) shares.push_back(static_cast<float>(weight / total));
  return shares;
}

const float* pointer_to(const Shares& shares) { return shares.empty() ? nullptr : shares.data(); }

float scale_of(absl::Span<const float* const> gradients, absl::Span<const float> weights) {
  return weights.empty() ? 1.0f / static_cast<float>(gradients.size()) : 1.0f;
}

static_assert(static_cast<int>(GradientFormat::topk) == static_cast<int>(PushFormat::topk));
GradientFormat kernel_format(PushFormat format) { return static_cast<GradientFormat>(format.kind); }

}  // namespace

Isa chosen_isa() {
  // The choice is made once: a change during a run would not change the bits, but the speed.
  static const Isa chosen = choose_isa(std::getenv("GRADRAIL_ISA"), supported_isas());
  return chosen;
}

std::string_view isa_name(Isa isa) { return kIsaNames[static_cast<size_t>(isa)]; }

Isa choose_isa(const char* forced, absl::Span<const Isa> supported) {
  const std::string_view wanted = forced == nullptr ? "" : forced;
  if (wanted.empty()) return supported.back();
  for (const Isa isa : supported) {
    if (isa_name(isa) == wanted) return isa;
  }
  log_warning("GRADRAIL_ISA={}: not an instruction set that this host can run; using {}", wanted,
              isa_name(supported.back()));
  return supported.back();
}

bool updates_momentum(const OptimizerConfig& config, uint64_t update_index) {
  return update_index % momentum_every(config) == 0;
}

KernelArguments kernel_arguments(const OptimizerConfig& config, const ApplyArguments& a) {
  const float rate = a.rate == kAgreedRate ? config.learning_rate : a.rate;
  const bool is_decoupled = config.kind == OptimizerKind::adamw;
  return {
      .count = a.count,
      .parameters = a.parameters,
      .state = {a.state[0], a.state[1]},
      .gradients = a.gradients.data(),
      .gradient_count = a.gradients.size(),
      .format = kernel_format(a.format),
      .thousandths = a.format.thousandths,
      .targets = a.targets.data(),
      .target_count = a.targets.size(),
      .targets_bypass_cache = bypass_cache(a),
      .gradient_scale = scale_of(a.gradients, a.weights),
      .rate = is_adam(config.kind) ? adam_rate(config, rate, a.update_index) : rate,
      .momentum = config.momentum,
      .momentum_share = 1.0f / static_cast<float>(momentum_every(config)),
      .beta1 = config.beta1,
      // Rounded once, here: kernels of the CPU and of a GPU must use the same bits.
      .one_minus_beta1 = 1.0f - config.beta1,
      .beta2 = config.beta2,
      .one_minus_beta2 = 1.0f - config.beta2,
      .epsilon = epsilon_of(config, a.update_index),
      .decays = config.weight_decay != 0.0f,
      .decay = is_decoupled ? 0.0f : config.weight_decay,
      .shrink = is_decoupled ? 1.0f - rate * config.weight_decay : 1.0f,
  };
}

bool apply_with(Isa isa, const OptimizerConfig& config, const ApplyArguments& arguments) {
  GRADRAIL_CHECK(!arguments.gradients.empty() && arguments.gradients.size() <= kMaxGradients);
  GRADRAIL_CHECK(arguments.targets.size() <= kMaxTargets);
  GRADRAIL_CHECK(arguments.update_index > 0);  // adam divides by 1 − β1^t
  // A shard without elements takes part in each step like the others.
  if (arguments.count == 0) return true;
  const Shares shares = shares_of(arguments.gradients, arguments.weights);
  KernelArguments for_kernel = kernel_arguments(config, arguments);
  for_kernel.shares = pointer_to(shares);
  return kernel_for(config, arguments.update_index, kernels(isa))(for_kernel);
}

bool apply(const OptimizerConfig& config, const ApplyArguments& arguments) {
  return apply_with(chosen_isa(), config, arguments);
}

void mean_of(absl::Span<const float* const> gradients, absl::Span<const float> weights, PushFormat format,
             absl::Span<float> mean) {
  GRADRAIL_CHECK(!gradients.empty());
  const Shares shares = shares_of(gradients, weights);
  const KernelArguments arguments = {.count = mean.size(),
                                     .gradients = gradients.data(),
                                     .gradient_count = gradients.size(),
                                     .shares = pointer_to(shares),
                                     .format = kernel_format(format),
                                     .thousandths = format.thousandths,
                                     .gradient_scale = scale_of(gradients, weights)};
  kernels(chosen_isa()).sum(arguments, mean.data());
}

void pack_with(Isa isa, PushFormat format, absl::Span<const float> gradient, float* rest, void* packed) {
  kernels(isa).pack(kernel_format(format), format.thousandths, gradient.data(), rest, packed, gradient.size());
}

void pack(PushFormat format, absl::Span<const float> gradient, float* rest, void* packed) {
  pack_with(chosen_isa(), format, gradient, rest, packed);
}

size_t first_non_finite(absl::Span<const float> values) {
  constexpr size_t kAtOnce = 1024;  // a run without a branch for each value
  for (size_t first = 0; first < values.size(); first += kAtOnce) {
    const absl::Span<const float> some = values.subspan(first, kAtOnce);
    uint32_t odd = 0;
    for (const float value : some) odd |= std::bit_cast<uint32_t>(value - value);  // NaN less NaN is NaN
    if (odd == 0) continue;
    const auto found = std::find_if(some.begin(), some.end(), [](float value) { return !std::isfinite(value); });
    return first + static_cast<size_t>(found - some.begin());
  }
  return values.size();
}

std::string_view apply_isa() { return isa_name(chosen_isa()); }

}  // namespace gradrail::ps
