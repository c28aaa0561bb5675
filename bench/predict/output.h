#pragma once

#include <optional>

#include "bench/predict/description.h"
#include "bench/predict/goodput.h"
#include "bench/predict/simulation.h"
#include "nlohmann/json_fwd.hpp"

namespace gradrail::bench::predict {

struct Prediction {
  Outcome outcome;
  /// The results without and with a backup of each ps, if hosts fail.
  std::optional<Goodput> without_backup, with_backup;
};

/// docs/predict.md describes the fields.
nlohmann::json to_json(const Description& description, const Prediction& prediction);

/// Prints cluster, load, costs and their sources as comments, then the results for people.
void print(const Description& description, const Prediction& prediction);

}  // namespace gradrail::bench::predict
