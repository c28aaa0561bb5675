#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "bench/suites/exchange_run.h"

namespace gradrail::bench {

/// The gradients of one training step, from its trace. Each all-reduce, reduce-scatter or reduce is one layer, ready
/// when it begins.
struct TracedStep {
  std::string about;                        ///< for people: the step, and how many there were
  std::vector<ExchangeLoad::Layer> layers;  ///< in any order; elements above 0
};

/// A Kineto trace of torch.profiler: a JSON object with "traceEvents", or the list alone. Annotations ProfilerStep#N
/// separate the steps. Of those with reductions, the one with the median duration counts; a trace without annotations
/// is one step. Times are those of the kernels if the kernels name their sizes, else those of the calls.
/// Errors  DATA_LOSS: not JSON, or no reduction with a size; says what was found.
absl::StatusOr<TracedStep> step_of_kineto(std::string_view text);

/// A Chakra execution trace of chakra_jsonizer: JSON objects one after the other, one for each node. The trace is one
/// step. Without start times, a node starts as soon as its dependencies end, and a reduction takes no time.
/// Errors  as above, and DATA_LOSS: dependencies in a circle.
absl::StatusOr<TracedStep> step_of_chakra(std::string_view text);

}  // namespace gradrail::bench
