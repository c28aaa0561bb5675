#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "bench/suites/exchange_run.h"

namespace gradrail::bench {

/// A model as the exchange sees it: what becomes ready when in the backward pass.
struct LayerList {
  std::string name;
  std::vector<ExchangeLoad::Layer> layers;  ///< at least one; in the order in which they become ready
  /// The gradients of all layers, in bytes of fp32.
  uint64_t bytes() const;
};

/// A file or pipe of lines `name bytes microseconds`, in the order of their times; # begins a comment. A name without a
/// slash that is no file here is looked for among those that come with the program: `resnet50`.
/// Errors  NOT_FOUND: lists those that come along. DATA_LOSS: file and line; a trace. Others: as read_file(), also for
///         a folder.
absl::StatusOr<LayerList> read_layer_list(const std::string& file);

}  // namespace gradrail::bench
