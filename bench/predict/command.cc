#include "bench/predict/command.h"

#include <algorithm>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "base/status.h"
#include "bench/predict/check.h"
#include "bench/predict/goodput.h"
#include "bench/predict/output.h"
#include "bench/predict/simulation.h"
#include "bench/predict/sweep.h"
#include "fmt/format.h"
#include "fmt/ranges.h"
#include "nlohmann/json.hpp"

namespace gradrail::bench::predict {
namespace {

/// Point by point: the last sweep changes fastest.
struct Point {
  std::string label;
  PredictFlags flags;
  nlohmann::json values = nlohmann::json::object();
};

absl::StatusOr<std::vector<Point>> points_of(const PredictFlags& flags) {
  std::vector<Point> points{{.label = "", .flags = flags}};
  std::set<std::string> swept;
  for (const std::string& text : flags.sweep) {
    GRADRAIL_ASSIGN_OR_RETURN(const Sweep sweep, parse_sweep(text));
    std::string name = sweep.name;
    std::replace(name.begin(), name.end(), '-', '_');  // each flag has both spellings
    if (!swept.insert(name).second)
      return absl::InvalidArgumentError(
          fmt::format("--sweep {}: a second sweep of {}; give all its values in one sweep", text, sweep.name));
    std::vector<Point> more;
    for (const Point& point : points) {
      for (const std::string& value : sweep.values) {
        Point& next = more.emplace_back(point);
        GRADRAIL_RETURN_IF_ERROR(set_value(sweep.name, value, next.flags));
        next.label += fmt::format("{}{}={}", next.label.empty() ? "" : " ", sweep.name, value);
        next.values[sweep.name] = value;
      }
    }
    points = std::move(more);
  }
  return points;
}

absl::StatusOr<Prediction> prediction_of(const Description& description) {
  Prediction prediction;
  GRADRAIL_ASSIGN_OR_RETURN(prediction.outcome, simulate(description));
  if (description.failures.mtbf_hours > 0) {
    prediction.without_backup = goodput_of(description, prediction.outcome.step_s_mean, /*has_backup=*/false);
    prediction.with_backup = goodput_of(description, prediction.outcome.step_s_mean, /*has_backup=*/true);
  }
  return prediction;
}

}  // namespace

absl::StatusOr<bool> run_predict(const PredictFlags& flags) {
  const Failures& failures = flags.failures;
  if (!flags.check.empty() && (failures.mtbf_hours > 0 || !flags.failure_flag.empty()))
    return absl::InvalidArgumentError(
        fmt::format("{}: has no effect with --check, which compares steps without failures",
                    failures.mtbf_hours > 0 ? "--mtbf" : flags.failure_flag));
  if (!flags.check.empty()) return run_check(flags);
  GRADRAIL_ASSIGN_OR_RETURN(const std::vector<Point> points, points_of(flags));
  // All of them first: a mistake in the last value must not end a run of minutes.
  std::vector<Description> descriptions;
  for (const Point& point : points) {
    GRADRAIL_ASSIGN_OR_RETURN(Description description, description_of(point.flags));
    descriptions.push_back(std::move(description));
  }
  const auto fails = [](const Description& description) { return description.failures.mtbf_hours > 0; };
  if (const std::string& flag = points.front().flags.failure_flag;
      !flag.empty() && std::none_of(descriptions.begin(), descriptions.end(), fails))
    return absl::InvalidArgumentError(fmt::format("{}: has no effect without failures; give --mtbf HOURS", flag));
  if (!flags.json) {
    print_assumptions(descriptions);
    print_header();
  }
  nlohmann::json rows = nlohmann::json::array();
  for (size_t i = 0; i < points.size(); ++i) {
    GRADRAIL_ASSIGN_OR_RETURN(const Prediction prediction, prediction_of(descriptions[i]));
    if (!flags.json) {
      print_row(points[i].label, descriptions[i], prediction);
      continue;
    }
    nlohmann::json row = to_json(descriptions[i], prediction);
    row["point"] = points[i].values;
    rows.push_back(std::move(row));
  }
  if (flags.json)
    fmt::print("{}\n", (flags.sweep.empty() ? rows.front() : nlohmann::json{{"points", rows}})
                           .dump(2, ' ', false, nlohmann::json::error_handler_t::replace));
  return true;
}

}  // namespace gradrail::bench::predict
