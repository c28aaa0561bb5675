#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "gpu/compute/blas_abi.h"
#include "gpu/compute/compute.h"
#include "gpu/driver/device.h"
#include "gpu/driver/stream.h"

namespace gradrail::gpu {

/// cuBLAS, found when the program runs.
struct BlasLibrary {
  std::string name;  ///< "libcublas.so.13"
  cublas::Functions api;
};

/// Newest first. One that is newer than the driver loads, but does not start, where an older one would.
std::vector<const char*> blas_library_names(int driver_version);

/// The first call loads the library.
/// Errors  FAILED_PRECONDITION: the library is missing; the message names the package to install.
absl::StatusOr<const BlasLibrary*> blas_library();

/// Products on one stream, row-major, in fp32 throughout: no TF32, so that results are as accurate as the host's.
/// Threads  One owner, with the context current.
class Blas {
 public:
  static absl::StatusOr<std::unique_ptr<Blas>> create(SharedContext context, const Stream& stream);
  ~Blas();
  Blas(const Blas&) = delete;
  Blas& operator=(const Blas&) = delete;

  absl::Status product(const ProductShape& shape, const float* a, const float* b, float* c, bool accumulate);
  /// sums[j] = Σi x[i, j]. `ones`: [rows] of 1.
  absl::Status column_sums(size_t rows, size_t columns, const float* x, const float* ones, float* sums);

 private:
  Blas(SharedContext context, const cublas::Functions& api, cublas::Handle handle, cuda::Stream stream)
      : context_(std::move(context)), api_(api), handle_(handle), stream_(stream) {}
  absl::Status status(cublas::Status result, std::string_view operation) const;
  absl::Status take_workspace();
  /// cuBLAS leaves the result of an empty sum as it is.
  absl::Status clear(float* values, size_t count) const;

  SharedContext context_;
  const cublas::Functions& api_;
  cublas::Handle handle_;
  const cuda::Stream stream_;
  std::unique_ptr<Memory> workspace_;  ///< null before the first product
};

}  // namespace gradrail::gpu
