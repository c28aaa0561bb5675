#pragma once

#include <memory>
#include <string>
#include <vector>

#include "gpu/compute/compute.h"
#include "tests/worker/client/cluster.h"

namespace gradrail::worker {

/// "simnic", a network device for simulated GPUs; to be called before the first cluster.
void find_simulated_nic();

/// Sets the faults of simnic, in an environment variable of this process, until the destructor runs.
class NicFault {
 public:
  explicit NicFault(const char* words);
  ~NicFault();
};

/// A GPU with a block of variables, and a client that keeps its variables there.
class GpuWorker {
 public:
  explicit GpuWorker(int ordinal = 0);

  /// For PlacementOptions::device.
  DeviceBlock memory() const;
  gpu::Compute& device() { return *device_; }

  void join(ClientOptions options);
  Client& client() { return *client_; }
  bool has_joined() const { return client_ != nullptr; }
  /// Ends the client.
  void leave() { client_.reset(); }

  /// The gradient of a step, made on the device; then exchange() and wait().
  absl::Status step(uint32_t worker, uint64_t step);
  void write_gradients(uint32_t worker, uint64_t step);
  /// The next gradients are multiplied by it: see scale_gradients().
  void set_scale(float factor) { scale_ = factor; }
  /// The variables on the device.
  std::vector<float> parameters() { return download(memory().parameters); }
  std::vector<float> gradients() { return download(memory().gradients); }

 private:
  std::vector<float> download(const float* variables);

  const int ordinal_;
  std::unique_ptr<gpu::Compute> device_;
  std::unique_ptr<gpu::Memory> block_;
  std::unique_ptr<Client> client_;
  float scale_ = 1.0f;
};

size_t odd_elements();

}  // namespace gradrail::worker
