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
/// is one step. Times are those of the kernels if the kernels name their sizes, else those of the calls, else those of
/// the tasks.
/// Errors  DATA_LOSS: not JSON; no reduction with a size; a time or size that is no number, negative or too large. Says
///         what was found.
absl::StatusOr<TracedStep> step_of_kineto(std::string_view text);

/// An execution trace of PyTorch's ExecutionTraceObserver, schema 1.0 or 1.1. It has no times: each reduction
/// is ready at the beginning. Steps are as above, and the middle one counts.
/// Errors  as above, and DATA_LOSS: another schema; an id that is no number.
absl::StatusOr<TracedStep> step_of_execution_trace(std::string_view text);

/// A Chakra execution trace of chakra_jsonizer: JSON objects one after the other, one for each node. The trace is one
/// step. Without start times, a node starts as soon as its dependencies end, and a reduction takes no time.
/// Errors  as above, and DATA_LOSS: an id or a dependency that is no number. The same id twice. "dataDeps" in a circle,
///         or with a node that is not in the trace.
absl::StatusOr<TracedStep> step_of_chakra(std::string_view text);

}  // namespace gradrail::bench
