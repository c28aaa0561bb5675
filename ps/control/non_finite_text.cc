#include "ps/control/non_finite_text.h"

#include <cmath>

#include "fmt/format.h"
#include "ps/protocol/shard_map.h"

namespace gradrail::ps {
namespace {

using Source = NonFinite::Source;

std::string value_text(float value) { return std::isnan(value) ? "NaN" : value < 0 ? "-infinity" : "infinity"; }

/// "tensor w, element 3". Elements of a tensor count row by row.
std::string place_text(uint64_t element, const Schema& schema) {
  const Layout layout = layout_of(schema);
  for (size_t i = 0; i < schema.size(); ++i) {
    const uint64_t first = layout.tensor_first[i];
    if (element >= first && element - first < schema[i].elements())
      return fmt::format("tensor {}, element {}", schema[i].name, element - first);
  }
  return fmt::format("element {}", element);  // the index is between two fragments
}

std::string others_text(uint32_t further) {
  return further == 0   ? ""
         : further == 1 ? ", and so has another worker"
                        : fmt::format(", and so have {} others", further);
}

}  // namespace

std::string short_text(const NonFinite& first, const Schema& schema) {
  const bool has_worker = first.source == Source::gradient || first.source == Source::initial;
  return fmt::format("{} in {}, step {}{}", value_text(first.value), place_text(first.element, schema), first.step,
                     has_worker ? fmt::format(", of worker {}", first.worker) : "");
}

std::string log_text(const NonFinite& first, const std::string& worker, const Schema& schema) {
  const std::string what = fmt::format("{} in {}", value_text(first.value), place_text(first.element, schema));
  const std::string counted = "later cases are only counted (gradrail top, metric gradrail_non_finite_gradients_total)";
  switch (first.source) {
    case Source::gradient:
      return fmt::format(
          "{} has pushed {} in step {}{}: the parameters of all workers have it since global step {}; {}", worker, what,
          first.step, others_text(first.further), first.version, counted);
    case Source::initial:
      return fmt::format("{} has offered {} as initial value: the parameters of all workers begin with it", worker,
                         what);
    case Source::update:
      return fmt::format(
          "the update to global step {} has made {} of finite gradients (is the learning rate too large?): "
          "the parameters of all workers have it; {}",
          first.version, what, counted);
    case Source::state:
      return fmt::format(
          "the update to global step {} has made {} of finite gradients, in the state of the optimizer: "
          "gradients do not move this parameter any more (is the gradient too large?); {}",
          first.version, what, counted);
    case Source::unknown:
      return fmt::format(
          "the parameters or the optimizer's state have {} at global step {}, in the checkpoint, at the former "
          "parameter server, or since this step; {}",
          what, first.version, counted);
  }
  return what;
}

}  // namespace gradrail::ps
