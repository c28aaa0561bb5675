#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "base/memory.h"
#include "gpu/compute/compute.h"
#include "gpu/compute/recording.h"
#include "worker/models/device_layers.h"
#include "worker/models/device_pins.h"
#include "worker/models/network.h"
#include "worker/models/network_plan.h"

namespace gradrail::worker {

/// Runs Mlp or Cnn on a gpu::Compute. The results equal those of the CPU models up to rounding. A step first copies the
/// parameters to the device. It copies each complete gradient to the caller's memory during the rest of the backward
/// pass. The first step pins that memory. After stay_on_device() nothing is copied: `ready` reports a gradient that is
/// complete on the device, and one call enqueues a whole step (gpu/compute/recording.h).
/// Errors  step(), accuracy(): those of gpu::Compute. After any error except UNAVAILABLE, the next step may be tried.
class DeviceNetwork final : public Network {
 public:
  /// Errors  RESOURCE_EXHAUSTED: the message states the required memory.
  static absl::StatusOr<std::unique_ptr<DeviceNetwork>> create(NetworkPlan plan, std::unique_ptr<gpu::Compute> device);
  ~DeviceNetwork() override;

  BatchLoader::Form form() const override { return plan_.form; }
  absl::StatusOr<float> step(BatchLoader& loader, Parameters parameters, Gradients gradients,
                             const GradientReady& ready) override;
  /// The same with a batch of the caller: images [batch, pixels], labels [batch].
  absl::StatusOr<float> step(absl::Span<const float> images, absl::Span<const uint8_t> labels, Parameters parameters,
                             Gradients gradients, const GradientReady& ready);
  /// Copies the gradient of the logits to the host.
  std::optional<float> batch_accuracy() override;
  absl::StatusOr<float> accuracy(absl::Span<const uint8_t> images, absl::Span<const uint8_t> labels,
                                 Parameters parameters) override;
  DeviceBlock device_block() override;
  void stay_on_device() override { stays_ = true; }
  void copy_parameters_from(const float* parameters) override { parameters_from_ = parameters; }
  void meanwhile(std::function<void()> work) override { meanwhile_ = std::move(work); }
  std::string launches() const override;
  gpu::Compute* device() override { return device_.get(); }
  void average_by(gpu::TowerSum* sum, size_t tower) override;
  void release_memory() override;

 private:
  /// A gradient on its way to the host.
  struct Leaving {
    size_t tensor;
    gpu::CopyTicket ticket;
  };

  DeviceNetwork(NetworkPlan plan, std::unique_ptr<gpu::Compute> device);
  void lay_out(DeviceArena& arena);
  absl::Status allocate();
  absl::Status warm_up();
  size_t elements() const;
  absl::Span<float> host_costs() { return {reinterpret_cast<float*>(host_step_.data()), plan_.batch}; }
  absl::Span<uint8_t> host_labels() {
    return {reinterpret_cast<uint8_t*>(host_step_.data()) + plan_.batch * sizeof(float), plan_.batch};
  }
  size_t host_step_bytes() const { return plan_.batch * (sizeof(float) + sizeof(uint8_t)); }
  void upload_parameters(Parameters parameters);
  void forward();
  void costs_of_batch();
  absl::Status run(absl::Span<const float> images, Parameters parameters, Gradients gradients,
                   const GradientReady& ready);
  void parameter_gradients(size_t layer);
  void input_gradient(size_t layer);
  absl::Status record();
  absl::Status replay(const GradientReady& ready);
  absl::Status backward(Gradients gradients, const GradientReady& ready);
  absl::Status send(const LayerPlan& layer, Gradients gradients);
  bool has_arrived(const Leaving& gradient);
  absl::Status tell_arrived(const GradientReady& ready);
  absl::Status tell_next(const GradientReady& ready);
  float* logits() const { return layers_.back()->output(); }

  const NetworkPlan plan_;
  const DeviceLayout layout_;
  const std::unique_ptr<gpu::Compute> device_;
  std::unique_ptr<gpu::Memory> memory_;
  std::unique_ptr<gpu::Memory> variables_;  // parameters and gradients, as layout_
  bool stays_ = false;
  const float* parameters_from_ = nullptr;  // memory of another device while this one stays; null: parameters are here
  std::function<void()> meanwhile_;         // null: nothing to do
  std::vector<std::unique_ptr<DeviceLayer>> layers_;
  float* images_ = nullptr;
  uint8_t* labels_ = nullptr;
  float* costs_ = nullptr;
  std::vector<float*> parameters_, gradients_;  // device memory, by tensor
  // Costs and labels of a step. The memory has its own pages, so that it can be pinned: otherwise each step would stop
  // for their copies.
  SharedMemory host_step_;
  std::vector<float> host_logits_;
  bool has_step_ = false;                      // host_labels() are those of the last step
  std::vector<Leaving> leaving_;               // gradients that leave in this step
  size_t announced_ = 0;                       // number of them that were announced
  gpu::TowerSum* sum_ = nullptr;               // null: gradients are this tower's own
  size_t tower_ = 0;                           // index within sum_
  std::unique_ptr<gpu::Recording> recording_;  // recorded operations of a step that stays; null: none yet, or refused
  const float* recorded_to_ = nullptr;         // destination of the costs in recording_
  std::string why_not_recorded_;               // a recording that was refused is not tried again
  DevicePins pins_;                            // last member: unpinned before the device is destroyed
};

/// Creates a DeviceNetwork of the sizes in `options`.
absl::StatusOr<std::unique_ptr<Network>> make_device_network(const WorkloadOptions& options,
                                                             std::unique_ptr<gpu::Compute> device);

}  // namespace gradrail::worker
