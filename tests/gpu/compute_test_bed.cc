#include "tests/gpu/compute_test_bed.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <random>

#include "base/check.h"
#include "tests/gpu/simulation.h"

namespace gradrail::gpu {
namespace {

constexpr std::byte kGuard{0xa5};

uint64_t fresh_seed() {
  const char* wanted = std::getenv("GRADRAIL_TEST_SEED");
  return wanted != nullptr ? std::strtoull(wanted, nullptr, 10) : std::random_device()();
}

}  // namespace

Bed::Bed(std::unique_ptr<Compute> compute) : compute_(std::move(compute)), seed_(fresh_seed()), random_(seed_) {}

std::unique_ptr<Memory> Bed::make_guarded(const void* values, size_t bytes, size_t first) {
  std::vector<std::byte> image(first + bytes + kGuardBytes, kGuard);
  if (bytes > 0) std::memcpy(image.data() + first, values, bytes);
  absl::StatusOr<std::unique_ptr<Memory>> memory = compute_->allocate(image.size());
  GRADRAIL_CHECK(memory.ok());
  compute_->upload((*memory)->data(), image.data(), image.size());
  const absl::Status status = compute_->finish();  // the destructor of the image frees its bytes
  EXPECT_TRUE(status.ok()) << status;
  return *std::move(memory);
}

void Bed::read_guarded(const Memory& memory, size_t first, void* values, size_t bytes) {
  std::vector<std::byte> image(memory.bytes());
  const CopyTicket ticket = compute_->download(image.data(), memory.data(), image.size());
  const absl::Status status = compute_->wait(ticket);
  EXPECT_TRUE(status.ok()) << status;
  if (bytes > 0) std::memcpy(values, image.data() + first, bytes);
  const auto touched = [](std::byte byte) { return byte != kGuard; };
  const auto before = image.begin() + static_cast<std::ptrdiff_t>(first);
  const auto behind = before + static_cast<std::ptrdiff_t>(bytes);
  EXPECT_TRUE(std::none_of(image.begin(), before, touched)) << "written in front of a buffer of " << bytes << " bytes";
  EXPECT_TRUE(std::none_of(behind, image.end(), touched)) << "written behind a buffer of " << bytes << " bytes";
}

std::vector<float> Bed::normal(size_t count) {
  std::vector<float> values(count);
  for (float& value : values) value = static_cast<float>(random_.normal());
  return values;
}

std::vector<float> Bed::positive(size_t count) {
  std::vector<float> values(count);
  for (float& value : values) value = static_cast<float>(0.1 + random_.uniform());
  return values;
}

void ComputeTest::SetUp() {
  std::unique_ptr<Compute> compute;
  if (GetParam() == "host") {
    compute = host_compute();
  } else {
    absl::StatusOr<std::unique_ptr<Compute>> device = open_device(0);
    if (!device.ok() && Simulation::tolerates(device.status())) GTEST_SKIP() << device.status();
    ASSERT_TRUE(device.ok()) << device.status();
    compute = *std::move(device);
  }
  bed_ = std::make_unique<Bed>(std::move(compute));
  seed_trace_ = std::make_unique<::testing::ScopedTrace>(__FILE__, __LINE__,
                                                         "GRADRAIL_TEST_SEED=" + std::to_string(bed_->seed()));
}

void expect_near(absl::Span<const float> values, absl::Span<const double> expected, double tolerance) {
  ASSERT_EQ(values.size(), expected.size());
  for (size_t i = 0; i < values.size(); ++i) {
    if (std::isnan(expected[i]) && std::isnan(values[i])) continue;
    // Written so that a NaN is not near anything.
    if (std::abs(values[i] - expected[i]) <= tolerance * std::max(1.0, std::abs(expected[i]))) continue;
    ADD_FAILURE() << "element " << i << " of " << values.size() << " is " << values[i] << ", not " << expected[i];
    return;
  }
}

void expect_same_bits(absl::Span<const float> values, absl::Span<const float> expected) {
  ASSERT_EQ(values.size(), expected.size());
  for (size_t i = 0; i < values.size(); ++i) {
    if (std::bit_cast<uint32_t>(values[i]) == std::bit_cast<uint32_t>(expected[i])) continue;
    ADD_FAILURE() << "element " << i << " of " << values.size() << " is " << values[i] << ", not " << expected[i];
    return;
  }
}

}  // namespace gradrail::gpu
