#include "bench/report/run_file.h"

#include "base/read_file.h"
#include "base/status.h"
#include "fmt/format.h"
#include "nlohmann/json.hpp"

namespace gradrail::bench {
namespace {

// A recorded run has about a kilobyte for each row.
constexpr size_t kMaxRunBytes = size_t{256} << 20;

}  // namespace

absl::StatusOr<nlohmann::json> read_run(const std::string& path) {
  GRADRAIL_ASSIGN_OR_RETURN(const std::string text, read_file(path, kMaxRunBytes, FileKind::any));
  nlohmann::json run = nlohmann::json::parse(text, nullptr, false);
  if (is_recorded_run(run)) return run;
  return absl::DataLossError(fmt::format("{}: was not written by `gradrail bench SUITE -J FILE`", path));
}

bool is_recorded_run(const nlohmann::json& json) {
  // The fields are checked here once, because access to a missing field of a const object is undefined.
  return json.is_object() && json.contains("results") && json["results"].is_array() && json.contains("config") &&
         json["config"].is_object() && json.contains("machine");
}

absl::StatusOr<std::vector<Figure>> figures_of(const nlohmann::json& run) {
  std::vector<Figure> figures;
  try {  // nlohmann's only way to say that a field is missing or of another type
    for (const nlohmann::json& result : run["results"]) figures.push_back(figure_from(result));
  } catch (const nlohmann::json::exception& error) {
    return absl::DataLossError(fmt::format("a result is damaged: {}", error.what()));
  }
  return figures;
}

absl::StatusOr<std::vector<Figure>> figures_of(const nlohmann::json& run, const std::string& path) {
  absl::StatusOr<std::vector<Figure>> figures = figures_of(run);
  if (figures.ok()) return figures;
  return absl::DataLossError(fmt::format("{}: {}", path, message_of(figures.status())));
}

}  // namespace gradrail::bench
