#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>
#include <string>

#include "gtest/gtest.h"
#include "ps/optimizer/optimizer.h"
#include "ps/protocol/optimizer_settings.h"
#include "ps/protocol/push_format.h"
#include "ps/store/gpu_format.h"
#include "tests/gpu/compute_test_bed.h"

// update() gives the bits of ps::apply, and those are near the formulae in double.

namespace gradrail::gpu {
namespace {

class ComputeUpdate : public ComputeTest {};
INSTANTIATE_TEST_SUITE_P(On, ComputeUpdate, kComputes, compute_name);

constexpr uint64_t kUpdateIndex = 3;

struct Case {
  UpdateRule rule;
  size_t count;
  size_t gradient_count;
  size_t target_count;
  size_t offset;
  bool together;  ///< all buffers equally far from a boundary, or each differently
  PushFormat format = PushFormat::fp32;
  bool decays = false;
};

std::string to_string(const Case& c) {
  return "rule " + std::to_string(static_cast<int>(c.rule)) + ", count " + std::to_string(c.count) + ", gradients " +
         std::to_string(c.gradient_count) + " " + std::string(push_format_name(c.format)) + ", targets " +
         std::to_string(c.target_count) + ", offset " + std::to_string(c.offset) +
         (c.together ? " of all" : " and others") + (c.decays ? ", decays" : "");
}

OptimizerKind kind_of(UpdateRule rule) {
  if (rule == UpdateRule::collect || rule == UpdateRule::delayed_nesterov) return OptimizerKind::delayed_nesterov;
  return static_cast<OptimizerKind>(rule);  // in one order
}

OptimizerConfig config_of(UpdateRule rule, bool decays) {
  return {.kind = kind_of(rule),
          .learning_rate = 0.05f,
          .epsilon = 1e-2f,  // an epsilon that shows
          .weight_decay = decays ? 0.1f : 0.0f,
          .momentum_every = rule == UpdateRule::collect ? 2u : uint32_t{kUpdateIndex}};
}

/// Arguments of update() as the shard passes them, computed as ps::apply computes them.
UpdateArguments coefficients(UpdateRule rule, size_t gradient_count, bool decays) {
  const OptimizerConfig config = config_of(rule, decays);
  UpdateArguments a = {.rule = rule,
                       .gradient_scale = 1.0f / static_cast<float>(gradient_count),
                       .rate = config.learning_rate,
                       .momentum = config.momentum,
                       .momentum_share = 1.0f / static_cast<float>(config.momentum_every),
                       .beta1 = config.beta1,
                       .one_minus_beta1 = 1.0f - config.beta1,
                       .beta2 = config.beta2,
                       .one_minus_beta2 = 1.0f - config.beta2,
                       .epsilon = config.epsilon,
                       .decays = decays,
                       .decay = config.weight_decay};
  if (rule == UpdateRule::adam) {
    const auto correction = [](float beta) { return 1.0 - std::pow(static_cast<double>(beta), kUpdateIndex); };
    a.rate = static_cast<float>(static_cast<double>(config.learning_rate) * std::sqrt(correction(config.beta2)) /
                                correction(config.beta1));
  }
  return a;
}

struct Values {
  std::vector<float> parameters;
  std::vector<float> state[2];
  std::vector<std::vector<float>> gradients;
  std::vector<std::vector<uint16_t>> packed;  ///< the gradients in another format than fp32
};

Values random_values(Bed& bed, const Case& c) {
  Values values = {.parameters = bed.normal(c.count)};
  const int vectors = ps::state_vectors(kind_of(c.rule));
  if (vectors > 0) values.state[0] = bed.normal(c.count);
  if (vectors > 1) values.state[1] = bed.positive(c.count);  // adam's v is a mean of squares
  for (size_t i = 0; i < c.gradient_count; ++i) {
    std::vector<float>& gradient = values.gradients.emplace_back(bed.normal(c.count));
    if (c.format == PushFormat::fp32) continue;
    // Some blocks have infinity beside numbers, in some gradients.
    if (i % 3 == 1 && c.count > 0) gradient[c.count / 2] = std::numeric_limits<float>::infinity();
    std::vector<float> rest(c.count);
    values.packed.emplace_back((ps::packed_bytes(c.count, c.format) + 1) / 2);
    ps::pack(c.format, gradient, rest.data(), values.packed.back().data());
    const auto* const packed = reinterpret_cast<const float*>(values.packed.back().data());
    ps::mean_of({&packed, 1}, {}, c.format, absl::MakeSpan(gradient));
  }
  return values;
}

void apply_on_host(const Case& c, Values& values) {
  std::vector<const float*> gradients;
  for (const std::vector<float>& gradient : values.gradients) gradients.push_back(gradient.data());
  std::vector<float> mean(c.count);
  if (gradients.size() > ps::kMaxGradients) {  // one for apply(), in the same order
    for (size_t i = 0; i < c.count; ++i) {
      float sum = gradients[0][i];
      for (size_t g = 1; g < gradients.size(); ++g) sum += gradients[g][i];
      mean[i] = sum * (1.0f / static_cast<float>(gradients.size()));
    }
    gradients.assign(1, mean.data());
  }
  ps::apply(config_of(c.rule, c.decays), {.count = c.count,
                                          .parameters = values.parameters.data(),
                                          .state = {values.state[0].data(), values.state[1].data()},
                                          .gradients = gradients,
                                          .update_index = kUpdateIndex});
}

/// The buffers of one update where the Compute sees them.
struct Buffers {
  Bed::Array<float> parameters;
  std::optional<Bed::Array<float>> state[2];
  std::vector<Bed::Array<float>> gradients;
  std::vector<Bed::Array<uint16_t>> packed_gradients;
  std::vector<Bed::Array<float>> targets;
};

Buffers place(Bed& bed, const Case& c, const Values& values) {
  size_t next = c.offset;
  const auto offset = [&] { return c.together ? c.offset : next++ % 4; };
  Buffers buffers;
  buffers.parameters = bed.make(values.parameters, offset());
  for (int i = 0; i < 2; ++i) {
    if (!values.state[i].empty()) buffers.state[i] = bed.make(values.state[i], offset());
  }
  for (const std::vector<uint16_t>& gradient : values.packed)
    buffers.packed_gradients.push_back(bed.make(gradient, offset()));
  for (const std::vector<float>& gradient : values.gradients) {
    if (values.packed.empty()) buffers.gradients.push_back(bed.make(gradient, offset()));
  }
  for (size_t i = 0; i < c.target_count; ++i) buffers.targets.push_back(bed.poisoned<float>(c.count, offset()));
  return buffers;
}

void update(Compute& compute, const Case& c, const Buffers& buffers) {
  UpdateArguments arguments = coefficients(c.rule, c.gradient_count, c.decays);
  std::vector<const void*> gradients;
  for (const auto& gradient : buffers.gradients) gradients.push_back(gradient.data());
  for (const auto& gradient : buffers.packed_gradients) gradients.push_back(gradient.data());
  std::vector<float*> targets;
  for (const auto& target : buffers.targets) targets.push_back(target.data());
  arguments.count = c.count;
  arguments.parameters = buffers.parameters.data();
  for (int i = 0; i < 2; ++i) arguments.state[i] = buffers.state[i] ? buffers.state[i]->data() : nullptr;
  arguments.gradients = gradients;
  arguments.format = ps::gpu_format(c.format);
  arguments.targets = targets;
  compute.update(arguments);
}

void check_update(Bed& bed, const Case& c) {
  SCOPED_TRACE(to_string(c));
  Values values = random_values(bed, c);
  const Buffers buffers = place(bed, c, values);
  update(bed.compute(), c, buffers);
  const std::vector<std::vector<float>> gradients = values.gradients;
  apply_on_host(c, values);
  expect_same_bits(bed.read(buffers.parameters), values.parameters);
  for (int i = 0; i < 2; ++i) {
    if (buffers.state[i]) expect_same_bits(bed.read(*buffers.state[i]), values.state[i]);
  }
  for (const auto& target : buffers.targets) expect_same_bits(bed.read(target), values.parameters);
  for (size_t i = 0; i < buffers.gradients.size(); ++i) expect_same_bits(bed.read(buffers.gradients[i]), gradients[i]);
}

constexpr PushFormat kFormats[] = {PushFormat::fp32, PushFormat::bf16, PushFormat::int8, PushFormat::int4};
constexpr UpdateRule kRules[] = {UpdateRule::sgd,  UpdateRule::momentum, UpdateRule::nesterov,        UpdateRule::adam,
                                 UpdateRule::mean, UpdateRule::collect,  UpdateRule::delayed_nesterov};

TEST_P(ComputeUpdate, SameBitsAsApplyForEveryNumberOfBuffers) {
  // Each number of gradients in each format. Five numbers of targets take turns over four formats.
  constexpr size_t kTargets[] = {0, 1, 3, 16, 64};
  static_assert(std::size(kTargets) == std::size(kFormats) + 1);
  size_t next = 0;
  for (const UpdateRule rule : kRules) {
    for (const size_t gradients : {1, 2, 3, 4, 5, 16, 64}) {
      for (const PushFormat format : kFormats)
        check_update(bed(), {rule, 1003, gradients, kTargets[next++ % std::size(kTargets)], 0, true, format});
      ++next;  // another pair for each number of gradients
    }
  }
}

TEST_P(ComputeUpdate, SameBitsAsApplyAtEveryLengthAndAlignment) {
  for (const UpdateRule rule : kRules) {
    for (const size_t count : {0, 1, 2, 3, 4, 5, 7, 8, 1024, 4099}) {
      for (const size_t offset : {0, 1, 2, 3}) {
        for (const bool together : {true, false}) {
          for (const PushFormat format : kFormats) check_update(bed(), {rule, count, 2, 1, offset, together, format});
        }
      }
    }
  }
}

TEST_P(ComputeUpdate, SameBitsAsApplyWithWeightDecay) {
  for (const UpdateRule rule : kRules) {
    for (const PushFormat format : kFormats) check_update(bed(), {rule, 1003, 2, 1, 1, false, format, true});
  }
}

/// Longer than one round of a whole GPU takes (160 multiprocessors × 16 blocks × 256 threads × 2 quads).
TEST_P(ComputeUpdate, SameBitsAsApplyOverManyRounds) {
  const size_t count = compute().is_device() ? (size_t{1} << 20) + 5 : (size_t{1} << 16) + 5;
  for (const UpdateRule rule : kRules) check_update(bed(), {rule, count, 1, 1, 1, true});
}

TEST_P(ComputeUpdate, FormulaeInDouble) {
  for (const UpdateRule rule : kRules) {
    const Case c = {rule, 501, 3, 0, 0, true};
    const Values values = random_values(bed(), c);
    const Buffers buffers = place(bed(), c, values);
    update(compute(), c, buffers);
    const OptimizerConfig o = config_of(rule, false);
    std::vector<double> expected(c.count);
    for (size_t i = 0; i < c.count; ++i) {
      double g = 0.0;
      for (const std::vector<float>& gradient : values.gradients) g += gradient[i] / 3.0;
      const double s0 = values.state[0].empty() ? 0.0 : values.state[0][i];
      const double s1 = values.state[1].empty() ? 0.0 : values.state[1][i];
      const double v = o.momentum * s0 + g;
      const double first = o.beta1 * s0 + (1.0 - o.beta1) * g;
      const double second = o.beta2 * s1 + (1.0 - o.beta2) * g * g;
      const double rate = o.learning_rate * std::sqrt(1.0 - std::pow(o.beta2, 3)) / (1.0 - std::pow(o.beta1, 3));
      const double delayed = o.momentum * s1 + (s0 + g) / 3.0;
      const double steps[] = {o.learning_rate * g,
                              o.learning_rate * v,
                              o.learning_rate * (g + o.momentum * v),
                              rate * first / (std::sqrt(second) + o.epsilon),
                              values.parameters[i] - g,
                              o.learning_rate * g / 2.0,
                              o.learning_rate * (g / 3.0 + o.momentum * delayed)};
      expected[i] = values.parameters[i] - steps[static_cast<int>(rule)];
    }
    expect_near(bed().read(buffers.parameters), expected, 1e-5);
  }
}

}  // namespace
}  // namespace gradrail::gpu
