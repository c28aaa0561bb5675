// The two stores against each other: a shard in GPU memory gives the bits of one in host memory. The device here is
// the host twin of one; tests/system/gpu_parameters_test.py has the same over the driver.
#include "ps/store/parameter_store.h"

#include <gmock/gmock.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <random>

#include "base/memory.h"
#include "gpu/compute/compute.h"
#include "ps/optimizer/optimizer.h"
#include "ps/store/ablation.h"
#include "ps/store/store_device.h"
#include "tests/worker/models/faulty_compute.h"

namespace gradrail::ps {
namespace {

constexpr size_t kCount = 10'007;  // no multiple of anything

std::vector<float> random_values(size_t count, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> values(count);
  for (float& value : values) value = normal(random);
  return values;
}

std::unique_ptr<ParameterStore> host_store(const OptimizerConfig& optimizer) {
  return std::move(*make_host_store(optimizer, kCount, nullptr));
}

std::unique_ptr<ParameterStore> device_store(const OptimizerConfig& optimizer) {
  return std::move(*make_device_store(gpu::host_compute(), optimizer, kCount, nullptr));
}

std::vector<float> all_parameters(ParameterStore& store) {
  const float* const values = *store.fresh_parameters(0, kCount);
  return {values, values + kCount};
}

std::vector<float> state_of(ParameterStore& store, int vector) {
  std::vector<float> values(kCount);
  EXPECT_TRUE(store.copy_state(vector, 0, absl::MakeSpan(values)).ok());
  return values;
}

struct Case {
  OptimizerKind optimizer;
  size_t gradient_count;
  float weight_decay = 0.0f;
};

class StoreAgreement : public ::testing::TestWithParam<Case> {};

TEST_P(StoreAgreement, BitForBitOverUpdatesOfParts) {
  const uint64_t seed = std::random_device{}();
  SCOPED_TRACE(testing::Message() << "seed " << seed);
  const OptimizerConfig optimizer = {
      .kind = GetParam().optimizer,
      .learning_rate = 0.03f,
      .weight_decay = GetParam().weight_decay,
      .momentum_every = GetParam().optimizer == OptimizerKind::delayed_nesterov ? 2u : 0u};
  const auto host = host_store(optimizer);
  const auto device = device_store(optimizer);
  const std::vector<float> start = random_values(kCount, seed);
  ASSERT_TRUE(host->set(0, start).ok());
  ASSERT_TRUE(device->set(0, start).ok());
  ASSERT_EQ(all_parameters(*device), start);

  std::vector<std::vector<float>> gradients;
  std::vector<const float*> sources;
  for (size_t i = 0; i < GetParam().gradient_count; ++i) gradients.push_back(random_values(kCount, seed + 1 + i));
  for (const auto& gradient : gradients) sources.push_back(gradient.data());
  SharedMemory pinned = *SharedMemory::create("pinned", kCount * sizeof(float));
  auto* pinned_target = reinterpret_cast<float*>(pinned.data());
  const PinnedRange pin = device->device()->pin(pinned.span());
  std::vector<float> plain_target(kCount, NAN);
  for (uint64_t update = 1; update <= 3; ++update) {
    const float rate = update == 2 ? 0.01f : kAgreedRate;
    for (const auto& [offset, count] : {std::pair<size_t, size_t>{0, 4096}, {4096, kCount - 4096}}) {
      std::vector<const float*> parts;
      for (const float* source : sources) parts.push_back(source + offset);
      float* const targets[] = {plain_target.data() + offset, pinned_target + offset};
      ASSERT_TRUE(host->update(offset, count, parts, {}, {.index = update, .rate = rate}).ok());
      ASSERT_TRUE(device->update(offset, count, parts, targets, {.index = update, .rate = rate}).ok());
    }
    const std::vector<float> wanted = all_parameters(*host);
    ASSERT_NE(wanted, start);
    EXPECT_EQ(all_parameters(*device), wanted);
    EXPECT_EQ(plain_target, wanted);
    EXPECT_EQ(std::vector<float>(pinned_target, pinned_target + kCount), wanted);
  }
  for (int i = 0; i < state_vectors(optimizer.kind); ++i) EXPECT_EQ(state_of(*device, i), state_of(*host, i));
}

INSTANTIATE_TEST_SUITE_P(All, StoreAgreement,
                         ::testing::Values(Case{OptimizerKind::sgd, 1}, Case{OptimizerKind::sgd, 16},
                                           Case{OptimizerKind::sgd, 40}, Case{OptimizerKind::sgd, 140},
                                           Case{OptimizerKind::momentum, 3}, Case{OptimizerKind::nesterov, 17},
                                           Case{OptimizerKind::adam, 2}, Case{OptimizerKind::nesterov, 2, 0.05f},
                                           Case{OptimizerKind::adamw, 3, 0.05f},
                                           Case{OptimizerKind::torch_adam, 2, 0.05f}, Case{OptimizerKind::mean, 3},
                                           Case{OptimizerKind::delayed_nesterov, 3, 0.05f}),
                         [](const auto& test) {
                           return std::string(optimizer_name(test.param.optimizer)) + "_" +
                                  std::to_string(test.param.gradient_count);
                         });

/// The larger numbers need more than one pass.
TEST(ParameterStore, PackedGradientsGiveTheBitsOfTheWidenedOnes) {
  for (const PushFormat format : {PushFormat::bf16, PushFormat::int8, PushFormat::int4}) {
    for (const size_t gradient_count : {1, 3, 16, 17, 64, 65, 140}) {
      std::vector<std::vector<float>> packed(gradient_count, std::vector<float>(kCount));
      std::vector<std::vector<float>> wide(gradient_count);
      std::vector<const float*> packed_at, wide_at;
      for (size_t g = 0; g < gradient_count; ++g) {
        wide[g] = random_values(kCount, g);
        std::vector<float> rest(kCount);
        pack(format, wide[g], rest.data(), packed[g].data());
        packed_at.push_back(packed[g].data());
        mean_of({&packed_at.back(), 1}, {}, format, absl::MakeSpan(wide[g]));
        wide_at.push_back(wide[g].data());
      }
      const auto reference = host_store({.learning_rate = 1.0f});
      ASSERT_TRUE(reference->update(0, kCount, wide_at, {}, {}).ok());
      ASSERT_NE(all_parameters(*reference), std::vector<float>(kCount));
      for (const auto& store : {host_store({.learning_rate = 1.0f}), device_store({.learning_rate = 1.0f})}) {
        ASSERT_TRUE(store->update(0, kCount, packed_at, {}, {.format = format}).ok());
        EXPECT_EQ(all_parameters(*store), all_parameters(*reference))
            << store->where() << ", " << push_format_name(format) << ", " << gradient_count;
      }
    }
  }
}

TEST(ParameterStore, AnUpdateStoresIntoAllTargets) {
  for (const auto& store : {host_store({.learning_rate = 1.0f}), device_store({.learning_rate = 1.0f})}) {
    const std::vector<float> gradient = random_values(kCount, 1);
    const std::vector<const float*> gradients(70, gradient.data());
    SharedMemory memory = *SharedMemory::create("targets", 70 * kCount * sizeof(float));
    const PinnedRange pin = store->device() == nullptr ? nullptr : store->device()->pin(memory.span());
    std::vector<float*> targets;
    for (size_t i = 0; i < 70; ++i) targets.push_back(reinterpret_cast<float*>(memory.data()) + i * kCount);
    ASSERT_TRUE(store->update(0, kCount, gradients, absl::MakeSpan(targets), {}).ok());
    const std::vector<float> fresh = all_parameters(*store);
    ASSERT_NE(fresh[0], 0.0f);
    for (const float* target : targets) EXPECT_EQ(std::vector<float>(target, target + kCount), fresh);
  }
}

TEST(DeviceStore, SetLeavesStateAndStateSurvivesARoundTrip) {
  const auto store = device_store({.kind = OptimizerKind::adam});
  const std::vector<float> m = random_values(kCount, 1), v = random_values(kCount, 2), p = random_values(kCount, 3);
  ASSERT_TRUE(store->set_state(0, 0, m).ok());
  ASSERT_TRUE(store->set_state(1, 0, v).ok());
  ASSERT_TRUE(store->set(0, p).ok());
  EXPECT_EQ(state_of(*store, 0), m);
  EXPECT_EQ(state_of(*store, 1), v);
  EXPECT_EQ(all_parameters(*store), p);
}

TEST(DeviceStore, TheHostCopyIsWrittenOnRequestAlone) {
  const auto store = device_store({.kind = OptimizerKind::sgd, .learning_rate = 1.0f});
  const auto* const copy = reinterpret_cast<const float*>(store->parameters().data);
  ASSERT_TRUE(store->set(0, std::vector<float>(kCount, 10.0f)).ok());
  EXPECT_EQ(copy[0], 0.0f);
  EXPECT_EQ(**store->fresh_parameters(0, kCount), 10.0f);
  const std::vector<float> one(kCount, 1.0f);
  const float* const gradients[] = {one.data()};
  // Two runs that touch, and one beyond.
  for (const auto& [first, end] : {std::pair<size_t, size_t>{100, 200}, {200, 300}, {500, 600}}) {
    ASSERT_TRUE(store->update(first, end - first, gradients, {}, {.index = 1}).ok());
  }
  EXPECT_EQ(std::vector<float>(copy, copy + kCount), std::vector<float>(kCount, 10.0f));
  const auto fresh_between = [&](size_t first, size_t end) {
    ASSERT_EQ(*store->fresh_parameters(first, end - first), copy + first);
  };
  const auto expect_fresh = [&](std::initializer_list<std::pair<size_t, size_t>> runs) {
    std::vector<float> expected(kCount, 10.0f);
    for (const auto& [first, end] : runs) std::fill(expected.begin() + first, expected.begin() + end, 9.0f);
    EXPECT_EQ(std::vector<float>(copy, copy + kCount), expected);
  };
  fresh_between(150, 250);
  expect_fresh({{150, 250}});
  fresh_between(0, 120);
  expect_fresh({{100, 120}, {150, 250}});
  fresh_between(299, 501);
  expect_fresh({{100, 120}, {150, 250}, {299, 300}, {500, 501}});
  fresh_between(0, kCount);
  expect_fresh({{100, 300}, {500, 600}});
}

TEST(DeviceStore, WhatAFailedDownloadLeavesIsNotFresh) {
  auto device = std::make_unique<worker::FaultyCompute>(worker::Fault{.lost_at = 2});
  const auto store = *make_device_store(std::move(device), {.kind = OptimizerKind::sgd}, kCount, nullptr);
  ASSERT_TRUE(store->set(0, std::vector<float>(kCount, 1.0f)).ok());
  ASSERT_TRUE(store->fresh_parameters(0, 100).ok());
  for (int time = 0; time < 2; ++time) EXPECT_FALSE(store->fresh_parameters(100, 100).ok()) << time;
}

TEST(DeviceStore, APinOutlivedByNothingEndsInAnyOrder) {
  SharedMemory memory = *SharedMemory::create("pinned", 4096);
  auto store = device_store({});
  PinnedRange first = store->device()->pin(memory.span());
  const PinnedRange second = store->device()->pin({});
  EXPECT_NE(first, nullptr);
  EXPECT_EQ(second, nullptr);
  first.reset();
  EXPECT_NE(store->device()->pin(memory.span()), nullptr);
}

TEST(ParameterStore, OnlyAStoreOnADeviceHasDeviceMemory) {
  EXPECT_EQ(host_store({})->device(), nullptr);
  const auto store = device_store({});
  ASSERT_NE(store->device(), nullptr);
  EXPECT_EQ(store->device(), store->device());
}

struct AblationCase {
  const char* name;
  Ablation left_out;
  float parameter;  // after one update of a 10 by sgd with rate 1, gradients 1 and 3
  float target;     // NAN: not written
};

class StoreAblation : public ::testing::TestWithParam<AblationCase> {};

TEST_P(StoreAblation, LeavesOutItsPartsAlone) {
  const OptimizerConfig sgd = {.kind = OptimizerKind::sgd, .learning_rate = 1.0f};
  const auto store = *with_ablation(make_host_store, GetParam().left_out)(sgd, 3, nullptr);
  ASSERT_TRUE(store->set(0, std::vector<float>(3, 10.0f)).ok());
  const std::vector<float> one(3, 1.0f), three(3, 3.0f);
  std::vector<float> updated(3, NAN), copied(3, NAN);
  const float* const gradients[] = {one.data(), three.data()};
  float* const targets[] = {updated.data()};
  ASSERT_TRUE(store->update(0, 3, gradients, targets, {.index = 1}).ok());
  ASSERT_TRUE(store->copy_out(0, 3, copied.data()).ok());
  const float* const parameters = *store->fresh_parameters(0, 3);
  EXPECT_THAT(std::vector<float>(parameters, parameters + 3), ::testing::Each(GetParam().parameter));
  EXPECT_THAT(updated, ::testing::Each(::testing::NanSensitiveFloatEq(GetParam().target)));
  EXPECT_THAT(copied, ::testing::Each(::testing::NanSensitiveFloatEq(GetParam().target)));
  EXPECT_EQ(store->returns_parameters(), !GetParam().left_out.no_return);
}

INSTANTIATE_TEST_SUITE_P(
    All, StoreAblation,
    ::testing::Values(AblationCase{"nothing", {}, 8.0f, 8.0f}, AblationCase{"sum", {.no_sum = true}, 9.0f, 9.0f},
                      AblationCase{"optimizer", {.no_optimizer = true}, 2.0f, 2.0f},
                      AblationCase{"compute", {.no_sum = true, .no_optimizer = true}, 10.0f, 10.0f},
                      AblationCase{"way_back", {.no_return = true}, 8.0f, NAN}),
    [](const auto& test) { return std::string(test.param.name); });

TEST(StoreMaker, NamesOfDevices) {
  EXPECT_TRUE(store_maker("host").ok());
  for (const char* wrong : {"", "gpu", "gpu:", "gpu:x", "gpu:-1", "gpu:0x", "cuda:0", "gpu:99999999999"}) {
    const absl::Status refused = store_maker(wrong).status();
    EXPECT_TRUE(absl::IsInvalidArgument(refused)) << wrong;
    EXPECT_THAT(std::string(refused.message()), ::testing::HasSubstr("host or gpu:N")) << wrong;
  }
}

}  // namespace
}  // namespace gradrail::ps
