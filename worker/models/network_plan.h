#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "gpu/compute/compute.h"
#include "gradrail/mode.h"
#include "gradrail/schema.h"
#include "worker/data/dataset.h"
#include "worker/models/cnn.h"
#include "worker/models/mlp.h"

namespace gradrail::worker {

/// The layers of a network from the images on, as a DeviceNetwork is made of them.
struct LayerPlan {
  enum class Kind : uint8_t { dense, convolution };
  Kind kind = Kind::dense;
  gpu::ImageShape image;  ///< convolution: one input image (count 1)
  size_t inputs = 0;      ///< dense
  size_t outputs = 0;     ///< units, channels
  gpu::Activation activation = gpu::Activation::none;
  size_t weights = 0, bias = 0;  ///< indices of its tensors
};
struct NetworkPlan {
  std::string name;  ///< name in errors: "model cnn, batches of 100"
  size_t batch = 0, pixels = 0, classes = 0;
  BatchLoader::Form form = BatchLoader::Form::kDense;
  Schema schema;
  std::vector<LayerPlan> layers;
  PushFormat push = PushFormat::fp32;  ///< format of the gradients: formats except fp32 need room behind them
};
NetworkPlan mlp_plan(const Mlp::Shape& shape);
NetworkPlan cnn_plan(const Cnn::Shape& shape);

}  // namespace gradrail::worker
