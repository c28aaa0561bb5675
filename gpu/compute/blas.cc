#include "gpu/compute/blas.h"

#include <climits>
#include <cstdlib>
#include <string_view>
#include <utility>

#include "base/log.h"
#include "base/status.h"
#include "fmt/format.h"
#include "gpu/compute/device_memory.h"
#include "gpu/driver/library.h"

namespace gradrail::gpu {
namespace {

std::string words(const cublas::Functions& api, cublas::Status result) {
  const char* name = api.cublasGetStatusName != nullptr ? api.cublasGetStatusName(result) : nullptr;
  return name != nullptr ? name : fmt::format("cuBLAS status {}", result);
}

/// cuBLAS reads these itself, and they have priority over cublasSetMathMode().
void warn_of_variables() {
  for (const char* name : {"CUBLAS_EMULATE_SINGLE_PRECISION", "CUBLAS_EMULATION_STRATEGY", "NVIDIA_TF32_OVERRIDE"}) {
    const char* const value = std::getenv(name);
    if (value == nullptr || *value == '\0' || std::string_view(value) == "0") continue;
    log_warning(
        "{}={}: cuBLAS may compute products of fp32 in another precision, so that equal runs can differ: unset it",
        name, value);
  }
}

absl::StatusOr<std::unique_ptr<const BlasLibrary>> load() {
  const absl::StatusOr<const Driver*> driver = Driver::get();
  const absl::StatusOr<Library> library =
      // Every version is tried without a driver: the message then lists them all.
      Library::find(blas_library_names(driver.ok() ? (*driver)->version() : INT_MAX));
  if (!library.ok()) {
    return absl::FailedPreconditionError(
        fmt::format("no cuBLAS ({}): install CUDA's libcublas, or set GRADRAIL_CUDA_LIBRARIES to its folder",
                    message_of(library.status())));
  }
  auto blas = std::make_unique<BlasLibrary>();
  blas->name = library->name();
  const char* missing = nullptr;
#define GRADRAIL_FIND(result, name, parameters) \
  blas->api.name = reinterpret_cast<decltype(blas->api.name)>(library->symbol(#name));
#define GRADRAIL_NEED(result, name, parameters) \
  if (blas->api.name == nullptr) missing = #name;
  GRADRAIL_CUBLAS_REQUIRED(GRADRAIL_FIND)
  GRADRAIL_CUBLAS_OPTIONAL(GRADRAIL_FIND)
  GRADRAIL_CUBLAS_REQUIRED(GRADRAIL_NEED)
#undef GRADRAIL_FIND
#undef GRADRAIL_NEED
  if (missing == nullptr) {
    warn_of_variables();
    return blas;
  }
  return absl::FailedPreconditionError(fmt::format("{} has no {}: install another version", library->name(), missing));
}

/// NVIDIA's recommendation for Hopper and newer GPUs (documentation of cuBLAS 13.0, cublasSetWorkspace).
constexpr size_t kWorkspaceBytes = size_t{32} << 20;

bool fits(std::initializer_list<size_t> sizes) {
  for (const size_t size : sizes) {
    if (size > INT_MAX) return false;
  }
  return true;
}

}  // namespace

std::vector<const char*> blas_library_names(int driver_version) {
  std::vector<const char*> names;
  for (const auto& [major, name] :
       {std::pair{13, "libcublas.so.13"}, std::pair{12, "libcublas.so.12"}, std::pair{11, "libcublas.so.11"}}) {
    // CUDA numbers its versions 1000 · major + 10 · minor.
    if (major <= driver_version / 1000) names.push_back(name);
  }
  return names;
}

absl::StatusOr<const BlasLibrary*> blas_library() {
  // The library is loaded once for the process, also after a failure: a search of the library path must not repeat in
  // each step.
  static const absl::StatusOr<std::unique_ptr<const BlasLibrary>> library = load();
  if (!library.ok()) return library.status();
  return library->get();
}

absl::StatusOr<std::unique_ptr<Blas>> Blas::create(SharedContext context, const Stream& stream) {
  GRADRAIL_ASSIGN_OR_RETURN(const BlasLibrary* const library, blas_library());
  const cublas::Functions& api = library->api;
  context->make_current();
  cublas::Handle handle = nullptr;
  const cublas::Status created = api.cublasCreate_v2(&handle);
  // The object owns the handle before the first check, so that each return below destroys it.
  std::unique_ptr<Blas> blas(new Blas(std::move(context), api, handle, stream.handle()));
  GRADRAIL_RETURN_IF_ERROR(blas->status(created, "starting cuBLAS"));
  GRADRAIL_RETURN_IF_ERROR(blas->status(api.cublasSetStream_v2(handle, stream.handle()), "cublasSetStream"));
  // fp32 without TF32. This is the default of cuBLAS; it is set because blas.h promises it.
  GRADRAIL_RETURN_IF_ERROR(blas->status(api.cublasSetMathMode(handle, cublas::kDefaultMath), "cublasSetMathMode"));
  return blas;
}

Blas::~Blas() {
  if (handle_ == nullptr || context_->is_abandoned()) return;
  context_->make_current();
  api_.cublasDestroy_v2(handle_);
}

/// Allocates the workspace of cuBLAS, which would otherwise allocate one within a recording, and could choose other
/// kernels there than in the steps before.
absl::Status Blas::take_workspace() {
  if (workspace_ != nullptr) return absl::OkStatus();
  GRADRAIL_ASSIGN_OR_RETURN(std::unique_ptr<Memory> workspace, DeviceMemory::allocate(context_, kWorkspaceBytes));
  GRADRAIL_RETURN_IF_ERROR(
      status(api_.cublasSetWorkspace_v2(handle_, workspace->data(), kWorkspaceBytes), "cublasSetWorkspace"));
  workspace_ = std::move(workspace);
  return absl::OkStatus();
}

absl::Status Blas::product(const ProductShape& shape, const float* a, const float* b, float* c, bool accumulate) {
  if (shape.m == 0 || shape.n == 0) return absl::OkStatus();
  if (!fits({shape.m, shape.k, shape.n})) {
    return absl::InternalError(fmt::format("{}: a product of {} x {} x {}: cuBLAS counts to {}", context_->label(),
                                           shape.m, shape.k, shape.n, INT_MAX));
  }
  if (shape.k == 0) return accumulate ? absl::OkStatus() : clear(c, shape.m * shape.n);
  GRADRAIL_RETURN_IF_ERROR(take_workspace());
  const float alpha = 1.0f;
  // cuBLAS does not read c if beta is 0; c may have NaN from an earlier use of the memory.
  const float beta = accumulate ? 1.0f : 0.0f;
  const int m = static_cast<int>(shape.m), k = static_cast<int>(shape.k), n = static_cast<int>(shape.n);
  // Row-major C read column-major is its transpose, and Cᵀ = Bᵀ · Aᵀ: the operands change places, nothing moves.
  const cublas::Status result =
      api_.cublasSgemm_v2(handle_, shape.transposed_b ? cublas::kTransposed : cublas::kNormal,
                          shape.transposed_a ? cublas::kTransposed : cublas::kNormal, n, m, k, &alpha, b,
                          shape.transposed_b ? k : n, a, shape.transposed_a ? m : k, &beta, c, n);
  if (result == cublas::kSuccess) return absl::OkStatus();
  return status(result, fmt::format("cublasSgemm {} x {} x {}", m, k, n));
}

absl::Status Blas::column_sums(size_t rows, size_t columns, const float* x, const float* ones, float* sums) {
  if (columns == 0) return absl::OkStatus();
  if (!fits({rows, columns})) {
    return absl::InternalError(
        fmt::format("{}: sums of {} x {}: cuBLAS counts to {}", context_->label(), rows, columns, INT_MAX));
  }
  if (rows == 0) return clear(sums, columns);
  GRADRAIL_RETURN_IF_ERROR(take_workspace());
  const float alpha = 1.0f;
  const float beta = 0.0f;
  // A product with a vector of ones needs no atomic operation: equal runs give equal bits.
  const int m = static_cast<int>(columns), n = static_cast<int>(rows);
  const cublas::Status result =
      api_.cublasSgemv_v2(handle_, cublas::kNormal, m, n, &alpha, x, m, ones, 1, &beta, sums, 1);
  if (result == cublas::kSuccess) return absl::OkStatus();
  return status(result, fmt::format("cublasSgemv {} x {}", m, n));
}

absl::Status Blas::clear(float* values, size_t count) const {
  return context_->status(context_->api().cuMemsetD32Async(address_of(values), 0, count, stream_), "clearing a result");
}

absl::Status Blas::status(cublas::Status result, std::string_view operation) const {
  if (result == cublas::kSuccess) return absl::OkStatus();
  // The only error with a remedy for the user: a smaller batch.
  const auto code = result == cublas::kAllocFailed ? absl::StatusCode::kResourceExhausted : absl::StatusCode::kInternal;
  return {code, fmt::format("{}: {}: {}", context_->label(), operation, words(api_, result))};
}

}  // namespace gradrail::gpu
