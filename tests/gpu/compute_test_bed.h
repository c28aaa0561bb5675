#pragma once

#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <type_traits>
#include <vector>

#include "absl/types/span.h"
#include "base/random.h"
#include "gpu/compute/compute.h"
#include "gtest/gtest.h"

namespace gradrail::gpu {

/// One Compute under test, the memory of its operations, and fresh random numbers. Every buffer has guard bytes on both
/// sides and begins at the requested offset from an aligned address. Output buffers hold NaN before. Waits end: Compute
/// reports a device without answers as lost.
class Bed {
 public:
  explicit Bed(std::unique_ptr<Compute> compute);

  Compute& compute() { return *compute_; }
  Random& random() { return random_; }
  /// GRADRAIL_TEST_SEED repeats a failed run.
  uint64_t seed() const { return seed_; }

  template <typename T>
  class Array {
   public:
    T* data() const { return reinterpret_cast<T*>(memory_->data() + first_); }
    size_t count() const { return count_; }

   private:
    friend class Bed;
    std::unique_ptr<Memory> memory_;
    size_t first_ = 0;
    size_t count_ = 0;
  };

  /// `offset` elements past an address that is aligned to 256 bytes.
  template <typename T>
  Array<T> make(absl::Span<const T> values, size_t offset = 0) {
    Array<T> array;
    array.count_ = values.size();
    array.first_ = kGuardBytes + offset * sizeof(T);
    array.memory_ = make_guarded(values.data(), values.size() * sizeof(T), array.first_);
    return array;
  }
  template <typename T>
  Array<T> make(const std::vector<T>& values, size_t offset = 0) {
    return make(absl::MakeConstSpan(values), offset);
  }
  /// NaN in float, bf16 and double.
  template <typename T>
  Array<T> poisoned(size_t count, size_t offset = 0) {
    std::vector<T> values(count);
    if (count > 0) std::memset(values.data(), 0xff, count * sizeof(T));  // of no bytes, the address may be null
    return make(values, offset);
  }

  /// Content of the array after all operations so far. Fails the test when a guard was changed or the Compute reports
  /// an error.
  template <typename T>
  std::vector<T> read(const Array<T>& array) {
    std::vector<T> values(array.count_);
    read_guarded(*array.memory_, array.first_, values.data(), values.size() * sizeof(T));
    return values;
  }

  /// N(0, 1).
  std::vector<float> normal(size_t count);
  /// Uniform in [0.1, 1.1).
  std::vector<float> positive(size_t count);

 private:
  static constexpr size_t kGuardBytes = 256;

  std::unique_ptr<Memory> make_guarded(const void* values, size_t bytes, size_t first);
  void read_guarded(const Memory& memory, size_t first, void* values, size_t bytes);

  std::unique_ptr<Compute> compute_;
  uint64_t seed_;
  Random random_;
};

/// The suites run over every Compute there is: the host twin, and device 0 of whatever driver is found: a simulated one
/// or NVIDIA's.
class ComputeTest : public ::testing::TestWithParam<std::string> {
 protected:
  void SetUp() override;
  Bed& bed() { return *bed_; }
  Compute& compute() { return bed_->compute(); }

 private:
  std::unique_ptr<Bed> bed_;
  std::unique_ptr<::testing::ScopedTrace> seed_trace_;
};

/// |value − expected| ≤ tolerance · max(1, |expected|) everywhere; NaN only where NaN is expected.
void expect_near(absl::Span<const float> values, absl::Span<const double> expected, double tolerance);

/// Whether the bits are equal; the message names the first difference.
void expect_same_bits(absl::Span<const float> values, absl::Span<const float> expected);

inline std::string compute_name(const ::testing::TestParamInfo<std::string>& compute) { return compute.param; }
inline const auto kComputes = ::testing::Values("host", "device");

}  // namespace gradrail::gpu
