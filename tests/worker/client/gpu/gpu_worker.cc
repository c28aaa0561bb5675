#include "tests/worker/client/gpu/gpu_worker.h"

#include <cstdlib>
#include <mutex>

#include "base/check.h"
#include "transport/plugin_loader.h"

namespace gradrail::worker {
namespace {

constexpr size_t kAllocation = 2 << 20;  // of its own, as a model's

}  // namespace

void find_simulated_nic() {
  static std::once_flag once;
  std::call_once(once, [] { GRADRAIL_CHECK(transport::set_plugin_dir(GRADRAIL_SIMULATED_NIC_FOLDER).ok()); });
}

NicFault::NicFault(const char* words) { setenv("GRADRAIL_SIMULATED_NIC", words, 1); }
NicFault::~NicFault() { unsetenv("GRADRAIL_SIMULATED_NIC"); }

size_t odd_elements() {
  size_t elements = 0;
  for (const Tensor& tensor : odd_schema()) elements += tensor.elements();
  return elements;
}

GpuWorker::GpuWorker(int ordinal) : ordinal_(ordinal) {
  absl::StatusOr<std::unique_ptr<gpu::Compute>> device = gpu::open_device(ordinal);
  GRADRAIL_CHECK(device.ok());
  device_ = *std::move(device);
  absl::StatusOr<std::unique_ptr<gpu::Memory>> block = device_->allocate(kAllocation);
  GRADRAIL_CHECK(block.ok());
  block_ = *std::move(block);
}

DeviceBlock GpuWorker::memory() const {
  const DeviceLayout layout = device_layout(odd_schema(), PushFormat::int8);  // the largest
  auto* parameters = block_->as<float>();
  return {.ordinal = ordinal_,
          .parameters = parameters,
          .gradients = parameters + layout.gradients_at,
          .bytes = layout.bytes};
}

void GpuWorker::join(ClientOptions options) {
  options.placement.device = memory();
  client_ = worker::join(std::move(options), odd_schema());
}

void GpuWorker::write_gradients(uint32_t worker, uint64_t step) {
  std::vector<float> gradients(odd_elements());
  for (size_t i = 0; i < gradients.size(); ++i) gradients[i] = scale_ * gradient_of(worker, step, i);
  device_->upload(memory().gradients, gradients.data(), gradients.size() * sizeof(float));
  EXPECT_TRUE(device_->finish().ok());
}

absl::Status GpuWorker::step(uint32_t worker, uint64_t step) {
  write_gradients(worker, step);
  client_->exchange();
  return client_->wait();
}

std::vector<float> GpuWorker::download(const float* variables) {
  std::vector<float> values(odd_elements());
  const gpu::CopyTicket ticket = device_->download(values.data(), variables, values.size() * sizeof(float));
  EXPECT_TRUE(device_->wait(ticket).ok());
  return values;
}

}  // namespace gradrail::worker
