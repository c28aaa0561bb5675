#include "bench/predict/check.h"

#include <algorithm>
#include <cmath>
#include <string>

#include "base/status.h"
#include "bench/predict/output.h"
#include "bench/predict/simulation.h"
#include "bench/report/figure.h"
#include "bench/report/run_file.h"
#include "fmt/format.h"
#include "nlohmann/json.hpp"

namespace gradrail::bench::predict {
namespace {

/// Relative error of a median up to which a row agrees.
constexpr double kTolerance = 0.1;

/// Tasks of one job among the processes of the run.
uint32_t tasks_of(const nlohmann::json& run, std::string_view job) {
  uint32_t count = 0;
  for (const nlohmann::json& device : run.at("devices"))
    count += device.at("task").get<std::string>().starts_with(job) ? 1 : 0;
  return count;
}

/// Refuses runs without a part of the exchange, and a format of parameters with as many bytes as they need.
absl::Status check_whole_exchange(const nlohmann::json& config, const PredictFlags& flags) {
  for (const char* const part : {"no_return", "no_sum", "no_optimizer"}) {
    if (config.value(part, false))
      return absl::DataLossError(
          fmt::format("{}: a run with --{}; --check predicts whole exchanges: measure without it", flags.check,
                      std::string(part).replace(2, 1, "-")));
  }
  if (flags.returns == "delta")
    return absl::DataLossError(fmt::format(
        "{}: a run with --return delta: its bytes depend on the values; measure with fp32 or bf16", flags.check));
  return absl::OkStatus();
}

absl::StatusOr<PredictFlags> flags_of(const nlohmann::json& run, PredictFlags flags) {
  try {  // nlohmann's only way to say that a field is missing or of another type
    const nlohmann::json& config = run.at("config");
    const std::string suite = config.at("question");
    if (suite != "exchange" && suite != "incast") {
      return absl::DataLossError(
          fmt::format("{}: a run of `bench {}`; --check needs one of `bench exchange` or `bench incast` with -J",
                      flags.check, suite));
    }
    flags.cluster.workers = tasks_of(run, "worker/");
    flags.cluster.ps = tasks_of(run, "ps/");
    flags.cluster.shards = config.at("shards");
    flags.mode = config.at("mode");
    flags.push = config.at("push");
    flags.returns = config.at("return");
    GRADRAIL_RETURN_IF_ERROR(check_whole_exchange(config, flags));
    flags.optimizer = config.at("optimizer");
    flags.bucket_kib = config.at("bucket_kib");
  } catch (const nlohmann::json::exception& error) {
    return absl::DataLossError(fmt::format("{}: {}", flags.check, error.what()));
  }
  if (flags.mode.empty()) flags.mode = "sync";
  flags.compute_ms = 0;
  return flags;
}

struct Row {
  Figure measured;
  Outcome predicted;
  double median_error = 0, p99_error = 0;  ///< relative to the measurement
};

absl::StatusOr<Row> row_of(Figure measured, PredictFlags flags) {
  flags.model = fmt::format("{}", measured.bytes);
  const absl::StatusOr<Description> description = description_of(flags);
  if (!description.ok())
    return absl::Status(description.status().code(),
                        fmt::format("{}: the row of {} bytes cannot be predicted: {}", flags.check, measured.bytes,
                                    message_of(description.status())));
  GRADRAIL_ASSIGN_OR_RETURN(const Outcome predicted, simulate(*description));
  Row row{.measured = std::move(measured), .predicted = predicted};
  row.median_error = predicted.step_s_median * 1e6 / row.measured.times.p50_us - 1;
  row.p99_error = predicted.step_s_p99 * 1e6 / row.measured.times.p99_us - 1;
  return row;
}

/// A row without a good measurement must not pass as one that agrees.
absl::Status check_measured(const Figure& row, const std::string& file) {
  const std::string why = !row.failed.empty()     ? row.failed
                          : row.wrong > 0         ? "it has wrong results"
                          : row.times.p50_us <= 0 ? "its time is 0"
                                                  : "";
  if (why.empty()) return absl::OkStatus();
  return absl::DataLossError(
      fmt::format("{}: the row of {} bytes has no measurement to compare: {}; measure again", file, row.bytes, why));
}

absl::StatusOr<std::vector<Row>> rows_of(const nlohmann::json& run, const PredictFlags& flags) {
  GRADRAIL_ASSIGN_OR_RETURN(const PredictFlags of_run, flags_of(run, flags));
  GRADRAIL_ASSIGN_OR_RETURN(std::vector<Figure> figures, figures_of(run, flags.check));
  std::vector<Row> rows;
  std::string with_lanes;
  for (Figure& measured : figures) {
    if (measured.path == "tcp") {
      GRADRAIL_RETURN_IF_ERROR(check_measured(measured, flags.check));
      GRADRAIL_ASSIGN_OR_RETURN(Row row, row_of(std::move(measured), of_run));
      rows.push_back(std::move(row));
    } else if (measured.path.starts_with("tcp ") && measured.path.find("worker/") == std::string::npos) {
      with_lanes = measured.path;
    }
  }
  if (rows.empty() && !with_lanes.empty())
    return absl::DataLossError(
        fmt::format("{}: its path is '{}', and --check compares one plain connection: measure with --rails off, "
                    "--streams 1 and without --encrypt-data",
                    flags.check, with_lanes));
  if (rows.empty())
    return absl::DataLossError(
        fmt::format("{}: has no row of `bench exchange` or `bench incast` over tcp", flags.check));
  return rows;
}

}  // namespace

absl::StatusOr<bool> run_check(const PredictFlags& flags) {
  GRADRAIL_ASSIGN_OR_RETURN(const nlohmann::json run, read_run(flags.check));
  GRADRAIL_ASSIGN_OR_RETURN(const std::vector<Row> rows, rows_of(run, flags));
  const bool holds =
      std::all_of(rows.begin(), rows.end(), [](const Row& row) { return std::fabs(row.median_error) <= kTolerance; });
  if (flags.json) {
    nlohmann::json out = {{"tolerance", kTolerance}, {"holds", holds}, {"rows", nlohmann::json::array()}};
    for (const Row& row : rows) {
      out["rows"].push_back(
          {{"size", row.measured.bytes},
           {"predicted_s", {{"median", row.predicted.step_s_median}, {"p99", row.predicted.step_s_p99}}},
           {"measured_s", {{"median", row.measured.times.p50_us * 1e-6}, {"p99", row.measured.times.p99_us * 1e-6}}},
           {"error", {{"median", row.median_error}, {"p99", row.p99_error}}},
           {"bottleneck", row.predicted.bottleneck}});
    }
    fmt::print("{}\n", out.dump(2, ' ', false, nlohmann::json::error_handler_t::replace));
    return holds;
  }
  fmt::print("# {:>12} {:>12} {:>12} {:>8} {:>12} {:>12} {:>8}  {}\n", "size", "predicted ms", "measured ms", "error",
             "99% pred.", "99% meas.", "error", "bottleneck");
  for (const Row& row : rows) {
    fmt::print("  {:>12} {:>12.3f} {:>12.3f} {:>+7.1f}% {:>12.3f} {:>12.3f} {:>+7.1f}%  {}{}\n", row.measured.bytes,
               row.predicted.step_s_median * 1e3, row.measured.times.p50_us * 1e-3, row.median_error * 100,
               row.predicted.step_s_p99 * 1e3, row.measured.times.p99_us * 1e-3, row.p99_error * 100,
               row.predicted.bottleneck, std::fabs(row.median_error) > kTolerance ? "  NOT WITHIN 10 %" : "");
  }
  return holds;
}

}  // namespace gradrail::bench::predict
