#include "ps/optimizer/optimizer.h"

#include <cmath>
#include <cstring>
#include <limits>
#include <string>
#include <tuple>
#include <vector>

#include "base/random.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "ps/optimizer/isa.h"

namespace gradrail::ps {
namespace {

constexpr size_t kGuardElements = 64;  // two vectors' width on either side
constexpr float kGuard = -123456.789f;
constexpr size_t kSizes[] = {0, 1, 15, 16, 17, 1000, 4099};
constexpr size_t kCounts[] = {0, 1, 2, 3, 16};
constexpr size_t kWholeModel = size_t{1} << 30;  // far over the threshold: targets bypass the cache

/// [count] floats at `offset` elements from a 64-byte boundary, with guards on both sides.
class Buffer {
 public:
  Buffer(size_t count, size_t offset) : count_(count), memory_(count + 2 * kGuardElements + 32, kGuard) {
    const size_t to_boundary = (64 - reinterpret_cast<uintptr_t>(memory_.data()) % 64) % 64 / sizeof(float);
    first_ = kGuardElements + to_boundary + offset;
    // An element that is not written stays a NaN, which equals nothing.
    std::fill_n(data(), count_, std::numeric_limits<float>::quiet_NaN());
  }
  float* data() { return memory_.data() + first_; }
  std::vector<float> values() { return {data(), data() + count_}; }
  bool guards_untouched() const {
    for (size_t i = 0; i < memory_.size(); ++i) {
      if ((i < first_ || i >= first_ + count_) && memory_[i] != kGuard) return false;
    }
    return true;
  }

 private:
  size_t count_;
  size_t first_ = 0;
  std::vector<float> memory_;
};

struct Case {
  size_t count;
  size_t gradient_count;
  size_t target_count;
  size_t offset;
  size_t pass_count;
};

/// All buffers of one update, filled from a seed.
class Update {
 public:
  Update(const Case& c, OptimizerKind kind, uint64_t seed) : case_(c), parameters_(c.count, c.offset) {
    Random random(seed);
    fill(parameters_, random, false);
    // Another misalignment for each: nothing may depend on their being equal.
    for (int i = 0; i < state_vectors(kind); ++i) {
      state_.emplace_back(c.count, c.offset == 0 ? 0 : c.offset + 1 + static_cast<size_t>(i));
      fill(state_.back(), random, i == 1);  // adam's v is a mean of squares
    }
    for (size_t i = 0; i < c.gradient_count; ++i) {
      gradients_.emplace_back(c.count, c.offset == 0 ? 0 : (c.offset + 5 * i) % 16);
      fill(gradients_.back(), random, false);
    }
    for (size_t i = 0; i < c.target_count; ++i) {
      targets_.emplace_back(c.count, c.offset == 0 ? 0 : (c.offset + 3 * i) % 16);
    }
  }

  void apply(Isa isa, const OptimizerConfig& config) {
    std::vector<const float*> gradients;
    std::vector<float*> targets;
    for (Buffer& gradient : gradients_) gradients.push_back(gradient.data());
    for (Buffer& target : targets_) targets.push_back(target.data());
    ApplyArguments arguments = {.count = case_.count,
                                .parameters = parameters_.data(),
                                .gradients = gradients,
                                .targets = targets,
                                .update_index = 3,
                                .pass_count = case_.pass_count};
    for (size_t i = 0; i < state_.size(); ++i) arguments.state[i] = state_[i].data();
    apply_with(isa, config, arguments);
  }

  std::vector<float> parameters() { return parameters_.values(); }
  std::vector<float> state(size_t i) { return state_[i].values(); }
  std::vector<float> gradient(size_t i) { return gradients_[i].values(); }
  std::vector<float> target(size_t i) { return targets_[i].values(); }

  bool guards_untouched() const {
    for (const auto* buffers : {&state_, &gradients_, &targets_}) {
      for (const Buffer& buffer : *buffers) {
        if (!buffer.guards_untouched()) return false;
      }
    }
    return parameters_.guards_untouched();
  }

  /// Everything it wrote, to be compared bit for bit.
  std::vector<float> output() {
    std::vector<float> all = parameters();
    for (Buffer& buffer : state_) {
      const std::vector<float> values = buffer.values();
      all.insert(all.end(), values.begin(), values.end());
    }
    return all;
  }

 private:
  static void fill(Buffer& buffer, Random& random, bool positive) {
    for (float& value : absl::MakeSpan(buffer.data(), buffer.values().size())) {
      value = static_cast<float>(positive ? 0.1 + random.uniform() : random.normal());
    }
  }

  Case case_;
  Buffer parameters_;
  std::vector<Buffer> state_, gradients_, targets_;
};

struct Expected {
  double parameter, state0, state1;
};

/// One element in float64, straight from the formulas in optimizer.h.
Expected reference(const OptimizerConfig& c, double p, double g, double s0, double s1, double t) {
  const double lr = c.learning_rate;
  const double every = c.momentum_every;
  if (c.kind == OptimizerKind::adamw) {
    p -= lr * static_cast<double>(c.weight_decay) * p;
  } else {
    g += static_cast<double>(c.weight_decay) * p;
  }
  switch (c.kind) {
    case OptimizerKind::sgd:
      return {p - lr * g, s0, s1};
    case OptimizerKind::momentum:
      s0 = static_cast<double>(c.momentum) * s0 + g;
      return {p - lr * s0, s0, s1};
    case OptimizerKind::nesterov:
      s0 = static_cast<double>(c.momentum) * s0 + g;
      return {p - lr * (g + static_cast<double>(c.momentum) * s0), s0, s1};
    case OptimizerKind::mean:
      return {g, s0, s1};
    case OptimizerKind::delayed_nesterov:
      s0 += g;
      if (std::fmod(t, every) != 0.0) return {p - lr * g / every, s0, s1};
      s1 = static_cast<double>(c.momentum) * s1 + s0 / every;
      return {p - lr * (static_cast<double>(c.momentum) * s1 + g / every), 0.0, s1};
    case OptimizerKind::adam:
    case OptimizerKind::adamw:
    case OptimizerKind::torch_adam:
      break;
  }
  const double beta1 = c.beta1;
  const double beta2 = c.beta2;
  s0 = beta1 * s0 + (1.0 - beta1) * g;
  s1 = beta2 * s1 + (1.0 - beta2) * g * g;
  if (c.kind != OptimizerKind::adam) {
    const double root = std::sqrt(s1 / (1.0 - std::pow(beta2, t)));
    return {p - lr / (1.0 - std::pow(beta1, t)) * s0 / (root + static_cast<double>(c.epsilon)), s0, s1};
  }
  const double rate = lr * std::sqrt(1.0 - std::pow(beta2, t)) / (1.0 - std::pow(beta1, t));
  return {p - rate * s0 / (std::sqrt(s1) + static_cast<double>(c.epsilon)), s0, s1};
}

bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && (a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0);
}

class OptimizerKernels : public ::testing::TestWithParam<std::tuple<OptimizerKind, Isa, float>> {
 protected:
  OptimizerKind kind() const { return std::get<0>(GetParam()); }
  Isa isa() const { return std::get<1>(GetParam()); }
  OptimizerConfig config() const {
    // ε as large as √v: a wrong place of ε shows.
    const float decay = std::get<2>(GetParam());
    // Update 3 is one of the momentum in the cases without decay, and collects in the others.
    return {.kind = kind(),
            .learning_rate = 0.1f,
            .epsilon = 0.1f,
            .weight_decay = decay,
            .momentum_every = decay == 0.0f ? 3u : 2u};
  }

  template <typename Body>
  void for_each_case(Body body) const {
    for (const size_t count : kSizes) {
      for (const size_t gradient_count : kCounts) {
        for (const size_t target_count : kCounts) {
          for (const size_t offset : {0, 1, 7}) {
            for (const size_t pass_count : {size_t{0}, kWholeModel}) {
              const Case c = {count, gradient_count, target_count, offset, pass_count};
              if (gradient_count == 0) continue;
              SCOPED_TRACE(::testing::Message() << "count " << count << " gradients " << gradient_count << " targets "
                                                << target_count << " offset " << offset << " pass " << pass_count);
              body(c);
              if (HasFatalFailure()) return;
            }
          }
        }
      }
    }
  }
};

TEST_P(OptimizerKernels, AgreeWithFloat64AndWriteNothingElse) {
  constexpr uint64_t kSeed = 11;
  constexpr double kTolerance = 3e-6;  // some ten roundings of values of a few units
  for_each_case([&](const Case& c) {
    Update before(c, kind(), kSeed);
    Update after(c, kind(), kSeed);
    after.apply(isa(), config());
    ASSERT_TRUE(after.guards_untouched());

    std::vector<double> mean(c.count, 0.0);
    for (size_t g = 0; g < c.gradient_count; ++g) {
      const std::vector<float> gradient = before.gradient(g);
      ASSERT_TRUE(same_bits(after.gradient(g), gradient)) << "gradient " << g << " was written";
      for (size_t i = 0; i < c.count; ++i) mean[i] += gradient[i] / static_cast<double>(c.gradient_count);
    }
    const int states = state_vectors(kind());
    const std::vector<float> p = before.parameters();
    const std::vector<float> s0 = states > 0 ? before.state(0) : std::vector<float>(c.count);
    const std::vector<float> s1 = states > 1 ? before.state(1) : std::vector<float>(c.count);
    const std::vector<float> new_p = after.parameters();
    const std::vector<float> new_s0 = states > 0 ? after.state(0) : s0;
    const std::vector<float> new_s1 = states > 1 ? after.state(1) : s1;
    for (size_t i = 0; i < c.count; ++i) {
      const Expected expected = reference(config(), p[i], mean[i], s0[i], s1[i], 3.0);
      ASSERT_NEAR(new_p[i], expected.parameter, kTolerance * (1.0 + std::abs(expected.parameter))) << "element " << i;
      ASSERT_NEAR(new_s0[i], expected.state0, kTolerance * (1.0 + std::abs(expected.state0))) << "element " << i;
      ASSERT_NEAR(new_s1[i], expected.state1, kTolerance * (1.0 + std::abs(expected.state1))) << "element " << i;
    }
    for (size_t t = 0; t < c.target_count; ++t) {
      ASSERT_TRUE(same_bits(after.target(t), new_p)) << "target " << t << " is not the parameters";
    }
  });
}

TEST_P(OptimizerKernels, GiveTheBitsOfTheGenericOnes) {
  constexpr uint64_t kSeed = 12;
  for_each_case([&](const Case& c) {
    Update here(c, kind(), kSeed);
    Update generic(c, kind(), kSeed);
    here.apply(isa(), config());
    generic.apply(Isa::generic, config());
    ASSERT_TRUE(same_bits(here.output(), generic.output()));
  });
}

// A worker joins or leaves, buckets are cut otherwise, a transport maps no targets: the parameters stay the same.
TEST_P(OptimizerKernels, GiveTheSameBitsWhateverTheTargetsOffsetsAndCuts) {
  constexpr uint64_t kSeed = 13;
  constexpr size_t kCount = 4099;
  for (const size_t gradient_count : {1, 2, 3, 16}) {
    const Case plain = {kCount, gradient_count, 0, 0, 0};
    Update reference(plain, kind(), kSeed);
    reference.apply(isa(), config());
    for (const Case& c : {Case{kCount, gradient_count, 1, 0, 0}, Case{kCount, gradient_count, 16, 7, 0},
                          Case{kCount, gradient_count, 2, 1, kWholeModel}}) {
      Update other(c, kind(), kSeed);
      other.apply(isa(), config());
      EXPECT_TRUE(same_bits(other.output(), reference.output()));
    }
  }
}

TEST_P(OptimizerKernels, GiveTheSameBitsInPieces) {
  constexpr size_t kCount = 4099;
  const auto run = [&](size_t piece) {
    std::vector<float> p(kCount), v(kCount, 0.5f), w(kCount, 0.25f), g0(kCount), g1(kCount), g2(kCount);
    Random random(14);
    for (auto* values : {&p, &g0, &g1, &g2}) {
      for (float& value : *values) value = static_cast<float>(random.normal());
    }
    for (size_t first = 0; first < kCount; first += piece) {
      const float* gradients[] = {&g0[first], &g1[first], &g2[first]};
      apply_with(isa(), config(),
                 {.count = std::min(piece, kCount - first),
                  .parameters = &p[first],
                  .state = {&v[first], &w[first]},
                  .gradients = gradients});
    }
    p.insert(p.end(), v.begin(), v.end());
    p.insert(p.end(), w.begin(), w.end());
    return p;
  };
  const std::vector<float> whole = run(kCount);
  for (const size_t piece : {1, 16, 1000, 1024, 1025, 4098}) EXPECT_TRUE(same_bits(run(piece), whole)) << piece;
}

TEST_P(OptimizerKernels, SumInWorkerOrder) {
  // 2^26 + 1 rounds to 2^26: the sum depends on the order and the grouping of its terms.
  constexpr float kBig = 67108864.0f;
  const std::vector<std::vector<float>> orders = {{kBig, 1.0f, -kBig},
                                                  {kBig, -kBig, 1.0f},
                                                  {1.0f, kBig, -kBig},
                                                  {kBig, 1.0f, 1.0f, -kBig},
                                                  {1.0f, 1.0f, kBig, -kBig},
                                                  {kBig, 1.0f, -kBig, 1.0f},
                                                  {1.0f, kBig, 1.0f, -kBig, 3.0f}};
  constexpr size_t kCount = 19;
  for (const std::vector<float>& values : orders) {
    volatile float sum = values[0];  // volatile: rounded to float at every step
    for (size_t i = 1; i < values.size(); ++i) sum = sum + values[i];
    const volatile float mean = sum * (1.0f / static_cast<float>(values.size()));
    std::vector<std::vector<float>> gradients;
    std::vector<const float*> pointers;
    for (const float value : values) gradients.emplace_back(kCount, value);
    for (const auto& gradient : gradients) pointers.push_back(gradient.data());
    std::vector<float> p(kCount, 0.0f), v(kCount, 0.0f), w(kCount, 0.0f);
    apply_with(isa(), {.kind = OptimizerKind::sgd, .learning_rate = 1.0f},
               {.count = kCount, .parameters = p.data(), .state = {v.data(), w.data()}, .gradients = pointers});
    EXPECT_THAT(p, ::testing::Each(0.0f - mean)) << ::testing::PrintToString(values);
  }
}

TEST_P(OptimizerKernels, StayWithFloat64OverAHundredUpdates) {
  constexpr size_t kCount = 77;
  std::vector<float> p(kCount, 1.0f), s0(kCount, 0.0f), s1(kCount, 0.0f), g(kCount);
  std::vector<Expected> expected(kCount, {1.0, 0.0, 0.0});
  Random random(16);
  OptimizerConfig slow = config();
  slow.learning_rate = 0.01f;
  for (uint64_t update = 1; update <= 100; ++update) {
    for (size_t i = 0; i < kCount; ++i) {
      g[i] = static_cast<float>(random.normal() + 0.5);
      const Expected e = expected[i];
      expected[i] = reference(slow, e.parameter, g[i], e.state0, e.state1, static_cast<double>(update));
    }
    const float* gradients[] = {g.data()};
    apply_with(isa(), slow,
               {.count = kCount,
                .parameters = p.data(),
                .state = {s0.data(), s1.data()},
                .gradients = gradients,
                .update_index = update});
    for (size_t i = 0; i < kCount; ++i) {
      ASSERT_NEAR(p[i], expected[i].parameter, 5e-5) << "update " << update << " element " << i;
    }
  }
}

std::vector<Isa> isas() { return {supported_isas().begin(), supported_isas().end()}; }

INSTANTIATE_TEST_SUITE_P(Here, OptimizerKernels,
                         ::testing::Combine(::testing::Values(OptimizerKind::sgd, OptimizerKind::momentum,
                                                              OptimizerKind::nesterov, OptimizerKind::adam,
                                                              OptimizerKind::adamw, OptimizerKind::torch_adam,
                                                              OptimizerKind::mean, OptimizerKind::delayed_nesterov),
                                            ::testing::ValuesIn(isas()), ::testing::Values(0.0f, 0.1f)),
                         [](const auto& instance) {
                           return std::string(optimizer_name(std::get<0>(instance.param))) + "_" +
                                  std::string(isa_name(std::get<1>(instance.param))) +
                                  (std::get<2>(instance.param) == 0.0f ? "" : "_decays");
                         });

TEST(Optimizer, AStepMayHaveARateOfItsOwn) {
  for (const auto kind : {OptimizerKind::sgd, OptimizerKind::adamw}) {
    const auto updated = [kind](float agreed, float own) {
      float p = 1.0f, m = 0.0f, v = 0.0f;
      const float g = 0.5f;
      const float* gradients[] = {&g};
      apply({.kind = kind, .learning_rate = agreed, .weight_decay = 0.1f},
            {.count = 1, .parameters = &p, .state = {&m, &v}, .gradients = gradients, .rate = own});
      return p;
    };
    EXPECT_EQ(updated(0.3f, 0.2f), updated(0.2f, kAgreedRate));
    EXPECT_EQ(updated(0.3f, 0.0f), 1.0f) << "a rate of 0 changes no parameter";
    EXPECT_NE(updated(0.3f, kAgreedRate), 1.0f);
  }
}

/// The parameters after updates with one gradient each, all in one bucket.
std::vector<float> updated_one_by_one(const OptimizerConfig& config, const std::vector<std::vector<float>>& gradients) {
  const size_t count = gradients.front().size();
  std::vector<float> p(count, 1.0f), s0(count), s1(count);
  uint64_t update = 0;
  for (const std::vector<float>& gradient : gradients) {
    const float* gradients_of_update[] = {gradient.data()};
    apply(config, {.count = count,
                   .parameters = p.data(),
                   .state = {s0.data(), s1.data()},
                   .gradients = gradients_of_update,
                   .update_index = ++update});
  }
  return p;
}

TEST(Optimizer, UpdatesOfNWorkersAreOneNesterovStepOfTheirMean) {
  constexpr size_t kCount = 77;
  constexpr uint32_t kWorkers = 3;
  Random random(21);
  std::vector<std::vector<float>> each, means;
  for (int step = 0; step < 10; ++step) {
    std::vector<float> mean(kCount, 0.0f);
    for (uint32_t worker = 0; worker < kWorkers; ++worker) {
      std::vector<float>& gradient = each.emplace_back(kCount);
      for (size_t i = 0; i < kCount; ++i) {
        gradient[i] = static_cast<float>(random.normal());
        mean[i] += gradient[i] / static_cast<float>(kWorkers);
      }
    }
    means.push_back(mean);
  }
  const OptimizerConfig delayed = {
      .kind = OptimizerKind::delayed_nesterov, .learning_rate = 0.1f, .momentum_every = kWorkers};
  const OptimizerConfig nesterov = {.kind = OptimizerKind::nesterov, .learning_rate = 0.1f};
  const std::vector<float> expected = updated_one_by_one(nesterov, means);
  const std::vector<float> got = updated_one_by_one(delayed, each);
  for (size_t i = 0; i < kCount; ++i) EXPECT_NEAR(got[i], expected[i], 1e-5) << i;
  // With N = 1 it is the same optimizer, bit for bit. 0 means 1 outside a run.
  for (const uint32_t every : {0u, 1u}) {
    OptimizerConfig each_update = delayed;
    each_update.momentum_every = every;
    EXPECT_TRUE(same_bits(updated_one_by_one(each_update, each), updated_one_by_one(nesterov, each)));
  }
}

TEST(Optimizer, NamesRoundTripAndUnknownOnesListTheRest) {
  for (const auto kind :
       {OptimizerKind::sgd, OptimizerKind::momentum, OptimizerKind::nesterov, OptimizerKind::adam, OptimizerKind::adamw,
        OptimizerKind::torch_adam, OptimizerKind::mean, OptimizerKind::delayed_nesterov}) {
    EXPECT_EQ(parse_optimizer(optimizer_name(kind)).value(), kind);
  }
  const absl::Status refused = parse_optimizer("adagrad").status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(refused.message()),
              ::testing::HasSubstr("sgd, momentum, nesterov, adam, mean, adamw, torch_adam, delayed_nesterov"));
  EXPECT_FALSE(parse_optimizer("").ok());
}

TEST(Optimizer, StateVectors) {
  EXPECT_EQ(state_vectors(OptimizerKind::sgd), 0);
  EXPECT_EQ(state_vectors(OptimizerKind::momentum), 1);
  EXPECT_EQ(state_vectors(OptimizerKind::nesterov), 1);
  EXPECT_EQ(state_vectors(OptimizerKind::adam), 2);
  EXPECT_EQ(state_vectors(OptimizerKind::adamw), 2);
  EXPECT_EQ(state_vectors(OptimizerKind::torch_adam), 2);
  EXPECT_EQ(state_vectors(OptimizerKind::mean), 0);
  EXPECT_EQ(state_vectors(OptimizerKind::delayed_nesterov), 2);
}

TEST(Optimizer, IsaIsTheForcedOneWhereItCanBe) {
  const Isa all[] = {Isa::generic, Isa::avx2, Isa::avx512};
  const Isa old[] = {Isa::generic};
  EXPECT_EQ(choose_isa(nullptr, all), Isa::avx512);
  EXPECT_EQ(choose_isa("", all), Isa::avx512);
  EXPECT_EQ(choose_isa("avx2", all), Isa::avx2);
  EXPECT_EQ(choose_isa("generic", all), Isa::generic);
  EXPECT_EQ(choose_isa("avx512", old), Isa::generic);
  EXPECT_EQ(choose_isa("sse9", all), Isa::avx512);
}

TEST(OptimizerDeathTest, RefusesWhatItsTablesCannotHold) {
  std::vector<float> p(1), g(1);
  const std::vector<const float*> seventeen_gradients(17, g.data());
  const std::vector<float*> seventeen_targets(17, g.data());
  const std::vector<const float*> one(1, g.data());
  const auto run = [&](absl::Span<const float* const> gradients, absl::Span<float* const> targets, uint64_t update) {
    apply({}, {.count = 1, .parameters = p.data(), .gradients = gradients, .targets = targets, .update_index = update});
  };
  EXPECT_DEATH(run({}, {}, 1), "broken invariant");
  EXPECT_DEATH(run(seventeen_gradients, {}, 1), "broken invariant");
  EXPECT_DEATH(run(one, seventeen_targets, 1), "broken invariant");
  EXPECT_DEATH(run(one, {}, 0), "broken invariant");
}

}  // namespace
}  // namespace gradrail::ps
