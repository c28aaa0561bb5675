#pragma once

#include <optional>
#include <string>
#include <vector>

#include "bench/predict/description.h"
#include "bench/predict/goodput.h"
#include "bench/predict/simulation.h"
#include "nlohmann/json_fwd.hpp"

namespace gradrail::bench::predict {

/// The prediction for one point of a sweep.
struct Prediction {
  Outcome outcome;
  /// With failures: without and with a backup of each ps.
  std::optional<Goodput> without_backup, with_backup;
};

/// docs/predict.md describes the fields.
nlohmann::json to_json(const Description& description, const Prediction& prediction);

/// Prints cluster, load, costs and their sources as comments. "…" stands for a value that differs between the points.
void print_assumptions(const std::vector<Description>& points);
void print_header();
/// `label` is the point of a sweep. Comparisons follow in lines of their own.
void print_row(const std::string& label, const Description& description, const Prediction& prediction);

}  // namespace gradrail::bench::predict
