#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "bench/suites/exchange_run.h"

namespace gradrail::bench {

/// A model in the form for the exchange: its layers and their times in the backward pass.
struct LayerList {
  std::string name;
  std::vector<ExchangeLoad::Layer> layers;  ///< at least one; sorted by the time at which they become ready
  /// The gradients of all layers, in bytes of fp32.
  uint64_t bytes() const;
};

/// Reads a file or pipe of lines `name bytes microseconds`, in the order of their times; # begins a comment. A name
/// without a slash that is no file here is searched among the files of the program: `resnet50`.
/// Errors  NOT_FOUND: the text lists the files of the program. DATA_LOSS: file and line; a trace. Others: those of
///         read_file(), also for a folder.
absl::StatusOr<LayerList> read_layer_list(const std::string& file);

}  // namespace gradrail::bench
