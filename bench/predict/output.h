#pragma once

#include "bench/predict/description.h"
#include "bench/predict/simulation.h"
#include "nlohmann/json_fwd.hpp"

namespace gradrail::bench::predict {

/// docs/predict.md describes the fields.
nlohmann::json to_json(const Description& description, const Outcome& outcome);

/// Prints cluster, load, costs and their sources as comments.
void print_assumptions(const Description& description);
void print_header();
/// `label` is the point of a sweep.
void print_row(const std::string& label, const Outcome& outcome);

}  // namespace gradrail::bench::predict
