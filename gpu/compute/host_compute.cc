#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "absl/status/status.h"
#include "base/crc32c.h"
#include "base/status.h"
#include "fmt/format.h"
#include "gpu/compute/compute.h"
#include "gpu/compute/host_compute_loops.h"

namespace gradrail::gpu {
namespace {

constexpr size_t kAlignBytes = 256;  // alignment that compute.h promises, the same as a GPU's allocator

class HostMemory final : public Memory {
 public:
  HostMemory(std::byte* data, size_t bytes) : Memory(data, bytes) {}
  ~HostMemory() override { std::free(data()); }
};

size_t host_bytes(int pages_name) {
  return static_cast<size_t>(sysconf(pages_name)) * static_cast<size_t>(sysconf(_SC_PAGESIZE));
}

class HostCompute final : public Compute {
 public:
  const std::string& name() const override { return name_; }
  bool is_device() const override { return false; }

  absl::StatusOr<std::unique_ptr<Memory>> allocate(size_t bytes) override {
    // More than the machine has is refused here: an allocator that overcommits would kill the process later.
    void* data = nullptr;
    if (bytes < host_bytes(_SC_PHYS_PAGES)) {
      data =
          // aligned_alloc() takes multiples of the alignment only.
          std::aligned_alloc(kAlignBytes, std::max(kAlignBytes, (bytes + kAlignBytes - 1) / kAlignBytes * kAlignBytes));
    }
    if (data == nullptr) {
      return absl::ResourceExhaustedError(fmt::format("host: {} bytes requested, {} free of {} on this host", bytes,
                                                      host_bytes(_SC_AVPHYS_PAGES), host_bytes(_SC_PHYS_PAGES)));
    }
    return std::make_unique<HostMemory>(static_cast<std::byte*>(data), bytes);
  }
  // Host memory needs no pin: operations use its addresses.
  absl::StatusOr<std::unique_ptr<Pin>> pin(void*, size_t) override { return std::make_unique<Pin>(); }

  void upload(void* to, const void* from, size_t bytes) override { copy(to, from, bytes); }
  // A copy is complete when it returns: its ticket exists for callers that also run on devices.
  CopyTicket download(void* to, const void* from, size_t bytes) override {
    copy(to, from, bytes);
    return ++last_ticket_;
  }
  bool is_done(CopyTicket) override { return true; }
  absl::Status wait(CopyTicket) override { return finish(); }
  absl::Status finish() override { return std::exchange(error_, absl::OkStatus()); }

  void product(const ProductShape& shape, const float* a, const float* b, float* c, bool accumulate) override;
  void bias_activation(size_t rows, size_t columns, const float* bias, Activation f, float* x) override {
    if (error_.ok()) host::bias_activation(rows, columns, bias, f, x);
  }
  void activation_backward(size_t count, Activation f, const float* y, float* gradient) override {
    if (error_.ok()) host::activation_backward(count, f, y, gradient);
  }
  void column_sums(size_t rows, size_t columns, const float* x, float* sums) override {
    if (error_.ok()) host::column_sums(rows, columns, x, sums);
  }
  void softmax_cross_entropy(size_t rows, size_t columns, const uint8_t* labels, float* logits, float* costs) override {
    if (error_.ok()) host::softmax_cross_entropy(rows, columns, labels, logits, costs);
  }
  void im2col(const ImageShape& shape, size_t kernel, const float* images, float* columns) override {
    if (error_.ok()) host::im2col(shape, kernel, images, columns);
  }
  void col2im(const ImageShape& shape, size_t kernel, const float* columns, float* images) override {
    if (error_.ok()) host::col2im(shape, kernel, columns, images);
  }
  void max_pool(const ImageShape& shape, const float* images, float* pooled) override {
    if (error_.ok()) host::max_pool(shape, images, pooled);
  }
  void max_pool_backward(const ImageShape& shape, const float* images, const float* pooled_gradient,
                         float* gradient) override {
    if (error_.ok()) host::max_pool_backward(shape, images, pooled_gradient, gradient);
  }
  void sum(absl::Span<const float* const> sources, size_t count, float scale, float* target) override {
    if (error_.ok()) host::sum(sources, count, scale, target);
  }
  void update(const UpdateArguments& arguments) override {
    if (error_.ok()) host::update(arguments);
  }
  absl::StatusOr<uint32_t> crc32c(const void* data, size_t bytes) override {
    GRADRAIL_RETURN_IF_ERROR(finish());
    return gradrail::crc32c(data, bytes);
  }

 private:
  void copy(void* to, const void* from, size_t bytes) {
    if (error_.ok() && bytes > 0) std::memcpy(to, from, bytes);  // either may be null if there are no bytes
  }

  const std::string name_ = "host";
  absl::Status error_;
  CopyTicket last_ticket_ = 0;
};

void HostCompute::product(const ProductShape& s, const float* a, const float* b, float* c, bool accumulate) {
  if (!error_.ok() || s.m == 0 || s.n == 0) return;
  if (s.k == 0) {  // an empty sum, which oneDNN would leave out
    if (!accumulate) std::fill_n(c, s.m * s.n, 0.0f);
    return;
  }
  error_ = host::product(s, a, b, c, accumulate);
}

}  // namespace

std::unique_ptr<Compute> host_compute() { return std::make_unique<HostCompute>(); }

}  // namespace gradrail::gpu
