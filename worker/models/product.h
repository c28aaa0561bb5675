#pragma once

#include <cstddef>
#include <memory>

#include "absl/status/statusor.h"

namespace gradrail::worker {

/// Calls into oneDNN use this many threads from now on, in the calling thread only (OpenMP counts per thread). With
/// one, none is ever started. Cheap enough to be called before every step.
void limit_product_threads(int threads);

/// One matrix product of fixed shape, prepared once: C [m, n] = A [m, k] · B [k, n] (+ bias [n]), all row-major. A
/// transposed operand has the reverse order in memory ([k, m], [n, k]).
/// Threads  One owner, the same that called limit_product_threads; created under the same limit.
class Product {
 public:
  struct Shape {
    size_t m = 0;
    size_t k = 0;
    size_t n = 0;
    bool transposed_a = false;
    bool transposed_b = false;
    bool bias = false;
  };
  /// INTERNAL: oneDNN refused, with its reason.
  static absl::StatusOr<Product> create(Shape shape);

  Product(Product&&) noexcept;
  Product& operator=(Product&&) noexcept;
  ~Product();

  void run(const float* a, const float* b, float* c, const float* bias = nullptr);

 private:
  struct Impl;
  explicit Product(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace gradrail::worker
