#include <algorithm>
#include <memory>
#include <utility>

#include "base/check.h"
#include "gpu/compute/compute.h"
#include "worker/models/product.h"

// This file replaces product.cc in a build without oneDNN.

namespace gradrail::worker {

void limit_product_threads(int) {}  // the loops use one thread

struct Product::Impl {
  Shape shape;
  std::unique_ptr<gpu::Compute> host = gpu::host_compute();
};

Product::Product(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Product::Product(Product&&) noexcept = default;
Product& Product::operator=(Product&&) noexcept = default;
Product::~Product() = default;

absl::StatusOr<Product> Product::create(Shape shape) { return Product(std::make_unique<Impl>(Impl{.shape = shape})); }

void Product::run(const float* a, const float* b, float* c, const float* bias) {
  const Shape& s = impl_->shape;
  if (s.bias) {
    for (size_t i = 0; i < s.m; ++i) std::copy_n(bias, s.n, c + i * s.n);
  }
  impl_->host->product({.m = s.m, .k = s.k, .n = s.n, .transposed_a = s.transposed_a, .transposed_b = s.transposed_b},
                       a, b, c, s.bias);
  GRADRAIL_CHECK(impl_->host->finish().ok());
}

}  // namespace gradrail::worker
