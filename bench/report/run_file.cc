#include "bench/report/run_file.h"

#include <algorithm>
#include <initializer_list>
#include <sstream>

#include "base/read_file.h"
#include "base/status.h"
#include "bench/driver/harness.h"
#include "fmt/format.h"
#include "nlohmann/json.hpp"

namespace gradrail::bench {
namespace {

// A recorded run has about a kilobyte for each row.
constexpr size_t kMaxRunBytes = size_t{256} << 20;
/// Eleven days: no suite measures an operation that long.
constexpr double kLongestUs = 1e12;

/// false for NaN
bool is_time(double us) { return us >= 0 && us <= kLongestUs; }

/// Returns "" or what a row of `-J` cannot have.
std::string damage_of(const Figure& figure) {
  for (const std::string* const text : {&figure.path, &figure.what, &figure.type})
    if (std::any_of(text->begin(), text->end(), is_control)) return "a name has control characters";
  const Times& times = figure.times;
  for (const double us : {times.min_us, times.max_us, times.p50_us, times.mean_us, times.p99_us, times.p999_us})
    if (!is_time(us)) return fmt::format("{} us is no time", us);
  for (const double us : figure.rounds_us)
    if (!is_time(us)) return fmt::format("{} us is no time of a round", us);
  return "";
}

/// A document, as earlier versions wrote it, or lines: the run, then its rows. Discarded: neither of both.
nlohmann::json run_of(const std::string& text) {
  std::istringstream lines(text);
  std::string line;
  std::getline(lines, line);
  nlohmann::json run = nlohmann::json::parse(line, nullptr, false);
  if (!run.is_object() || run.contains("results")) return nlohmann::json::parse(text, nullptr, false);
  nlohmann::json& results = run["results"] = nlohmann::json::array();
  while (std::getline(lines, line)) {
    results.push_back(nlohmann::json::parse(line, nullptr, false));
    if (results.back().is_discarded()) return results.back();
  }
  return run;
}

bool is_recorded_run(const nlohmann::json& json) {
  // The fields are checked here once, because access to a missing field of a const object is undefined.
  return json.is_object() && json.contains("results") && json["results"].is_array() && json.contains("config") &&
         json["config"].is_object() && json.contains("machine");
}

}  // namespace

absl::StatusOr<nlohmann::json> read_run(const std::string& path) {
  GRADRAIL_ASSIGN_OR_RETURN(const std::string text, read_file(path, kMaxRunBytes, FileKind::any));
  nlohmann::json run = run_of(text);
  if (is_recorded_run(run)) return run;
  return absl::DataLossError(fmt::format("{}: was not written by `gradrail bench SUITE -J FILE`", path));
}

absl::StatusOr<std::vector<Figure>> figures_of(const nlohmann::json& run, const std::string& path) {
  std::vector<Figure> figures;
  for (const nlohmann::json& result : run["results"]) {
    std::string damage;
    try {  // nlohmann reports a missing field or another type by an exception only
      figures.push_back(figure_from(result));
      damage = damage_of(figures.back());
    } catch (const nlohmann::json::exception& error) {
      damage = json_error_text(error);
    }
    if (damage.empty()) continue;
    return absl::DataLossError(fmt::format("{}: result {} is damaged: {}; measure again with -J", path,
                                           &result - &run["results"][0] + 1, damage));
  }
  return figures;
}

}  // namespace gradrail::bench
