#include "absl/status/status.h"
#include "dnnl.h"
#include "fmt/format.h"
#include "gpu/compute/host_compute_loops.h"

namespace gradrail::gpu::host {

absl::Status product(const ProductShape& s, const float* a, const float* b, float* c, bool accumulate) {
  // dnnl_sgemm() is row-major, unlike cuBLAS: the operands keep their order.
  const auto side = [](size_t length) { return static_cast<dnnl_dim_t>(length); };
  const dnnl_status_t status = dnnl_sgemm(s.transposed_a ? 'T' : 'N', s.transposed_b ? 'T' : 'N', side(s.m), side(s.n),
                                          side(s.k), 1.0f, a, side(s.transposed_a ? s.m : s.k), b,
                                          side(s.transposed_b ? s.k : s.n), accumulate ? 1.0f : 0.0f, c, side(s.n));
  if (status == dnnl_success) return absl::OkStatus();
  return absl::InternalError(fmt::format("oneDNN: dnnl_sgemm {}x{}x{}: status {}", s.m, s.k, s.n, status));
}

}  // namespace gradrail::gpu::host
