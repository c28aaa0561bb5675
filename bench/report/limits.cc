// A file of limits, for the prologue of a job:
//
//   [{"path": "tcp", "what": "bandwidth", "size": "4M", "min_GB/s": 1.2},
//    {"path": "shm*", "size": 65536, "max_us": 50, "max_99_us": 200}]
//
// "what" and "size" may be missing. A run that `-J` recorded is a file of limits, too.
#include "bench/report/limits.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <map>
#include <set>
#include <string_view>

#include "base/read_file.h"
#include "base/status.h"
#include "bench/driver/harness.h"
#include "bench/driver/options.h"
#include "bench/report/run_file.h"
#include "fmt/format.h"
#include "fmt/ranges.h"
#include "nlohmann/json.hpp"

namespace gradrail::bench {
namespace {

// A recorded run has about a kilobyte for each row.
constexpr size_t kMaxLimitBytes = size_t{256} << 20;
constexpr const char* kFields = "path, what, size, min_GB/s, max_us, max_99_us";
// Settings that select rows, or the effort of the measurement. All others change what a row measures.
const std::set<std::string_view> kFreeSettings = {"begin",     "end",        "factor",  "iterations", "warmup",
                                                  "check",     "seconds",    "rounds",  "seed",       "transports",
                                                  "bind_host", "plugin_dir", "cluster", "ps_hosts",   "worker_hosts"};

absl::StatusOr<double> bound_of(const std::string& name, const nlohmann::json& value) {
  const double number = value.is_number() ? value.get<double>() : 0.0;
  if (number > 0 && std::isfinite(number)) return number;
  return absl::InvalidArgumentError(fmt::format("\"{}\" must be a number above 0, and is {}", name, value.dump()));
}

absl::StatusOr<uint64_t> size_of(const nlohmann::json& value) {
  const uint64_t bytes = value.is_string()            ? parse_size(value.get<std::string>())
                         : value.is_number_unsigned() ? value.get<uint64_t>()
                                                      : 0;
  if (bytes > 0) return bytes;
  return absl::InvalidArgumentError(
      fmt::format("\"size\" must be a number of bytes such as 65536 or \"64K\", and is {}", value.dump()));
}

absl::StatusOr<std::string> text_field(const std::string& name, const nlohmann::json& value) {
  if (value.is_string() && !value.get_ref<const std::string&>().empty()) return value.get<std::string>();
  return absl::InvalidArgumentError(
      fmt::format("\"{}\" must be a text with at least one character, and is {}", name, value.dump()));
}

absl::StatusOr<Limit> limit_from(const nlohmann::json& entry, const std::string& origin) {
  if (!entry.is_object()) return absl::InvalidArgumentError(fmt::format("must be an object with {}", kFields));
  Limit limit{.origin = origin};
  for (const auto& [name, value] : entry.items()) {
    if (name == "path") {
      GRADRAIL_ASSIGN_OR_RETURN(limit.path, text_field(name, value));
    } else if (name == "what") {
      GRADRAIL_ASSIGN_OR_RETURN(limit.what, text_field(name, value));
    } else if (name == "size") {
      GRADRAIL_ASSIGN_OR_RETURN(limit.bytes, size_of(value));
    } else if (name == "min_GB/s") {
      GRADRAIL_ASSIGN_OR_RETURN(limit.min_gb_per_s, bound_of(name, value));
    } else if (name == "max_us") {
      GRADRAIL_ASSIGN_OR_RETURN(limit.max_us, bound_of(name, value));
    } else if (name == "max_99_us") {
      GRADRAIL_ASSIGN_OR_RETURN(limit.max_p99_us, bound_of(name, value));
    } else {
      // A misspelled bound must not be a limit that always holds.
      return absl::InvalidArgumentError(fmt::format("no field is called \"{}\"; fields: {}", name, kFields));
    }
  }
  if (limit.path.empty()) return absl::InvalidArgumentError("\"path\" is missing, such as \"tcp\" or \"shm*\"");
  if (!limit.min_gb_per_s && !limit.max_us && !limit.max_p99_us)
    return absl::InvalidArgumentError("has no bound: add min_GB/s, max_us or max_99_us");
  return limit;
}

absl::StatusOr<std::vector<Limit>> limits_of_list(const nlohmann::json& list, const std::string& name) {
  std::vector<Limit> limits;
  for (const nlohmann::json& entry : list) {
    const std::string origin = fmt::format("{}, limit {}", name, limits.size() + 1);
    absl::StatusOr<Limit> limit = limit_from(entry, origin);
    if (!limit.ok())
      return absl::InvalidArgumentError(fmt::format("limit {}: {}", limits.size() + 1, message_of(limit.status())));
    limits.push_back(*std::move(limit));
  }
  return limits;
}

/// Settings of the recorded run that change what a row measures, and differ: "workers 4 / 2".
std::vector<std::string> other_settings(const nlohmann::json& recorded, const nlohmann::json& config) {
  std::vector<std::string> list;
  // An option that an earlier version lacked has its default value.
  nlohmann::json complete = config_of(Options{});
  complete.update(recorded);
  for (const auto& [name, value] : config.items())
    if (!kFreeSettings.contains(name) && complete[name] != value)
      list.push_back(
          fmt::format("{} {} / {}", name == "question" ? "suite" : name, complete[name].dump(), value.dump()));
  return list;
}

absl::StatusOr<std::vector<Limit>> limits_of_run(const nlohmann::json& run, const std::string& name, double tolerance,
                                                 const nlohmann::json& config) {
  if (const std::vector<std::string> other = other_settings(run["config"], config); !other.empty()) {
    return absl::InvalidArgumentError(fmt::format(
        "it was recorded with other settings than those of this run ({}); use the same flags", fmt::join(other, ", ")));
  }
  GRADRAIL_ASSIGN_OR_RETURN(const std::vector<Figure> figures, figures_of(run));
  std::vector<Limit> limits;
  for (const Figure& figure : figures) {
    if (figure.wrong > 0)
      return absl::DataLossError(
          fmt::format("'{}' of {} bytes has wrong results: no reference for a good host; record it again", figure.path,
                      figure.bytes));
    if (!figure.failed.empty() || figure.times.p50_us <= 0) continue;
    limits.push_back({.origin = fmt::format("{}: {:.2f} us and {} %", name, figure.times.p50_us, tolerance),
                      .path = figure.path,
                      .what = figure.what,
                      .bytes = figure.bytes,
                      .max_us = figure.times.p50_us * (1 + tolerance / 100)});
  }
  return limits;
}

bool path_matches(const Limit& limit, const std::string& path) {
  if (!limit.path.ends_with('*')) return path == limit.path;
  return path.starts_with(std::string_view(limit.path).substr(0, limit.path.size() - 1));
}

bool selects(const Limit& limit, const Figure& figure) {
  return path_matches(limit, figure.path) && (limit.what.empty() || limit.what == figure.what) &&
         (limit.bytes == 0 || limit.bytes == figure.bytes);
}

std::string row_name(const std::string& path, const std::string& what, uint64_t bytes) {
  return fmt::format("{}{}{}{}", path, what.empty() ? "" : " ", what, bytes > 0 ? fmt::format(" at {} B", bytes) : "");
}

/// Why there may be no row: paths that could not be measured, else the paths that were.
std::string why_no_row(const Limit& limit, const std::vector<Figure>& figures) {
  std::set<std::string> reasons, paths;
  for (const Figure& figure : figures) {
    if (figure.failed.empty()) {
      paths.insert(row_name(figure.path, figure.what, figure.bytes));
      // A path that could not be opened has the name of its transport alone: "ofi" for "ofi verbs rxe0".
    } else if (path_matches(limit, figure.path) || limit.path.starts_with(figure.path)) {
      reasons.insert(fmt::format("{} was not measured: {}", figure.path, figure.failed));
    }
  }
  if (!reasons.empty()) return fmt::format("{}", fmt::join(reasons, "; "));
  return paths.empty() ? "no row was measured" : fmt::format("measured: {}", fmt::join(paths, ", "));
}

struct LimitedQuantity {
  const char* name;
  std::optional<double> Limit::*bound;
  bool is_least;  ///< the bound is a minimum
  const char* unit;
  double (*value)(const Figure&);  ///< 0: the row has none
};

constexpr LimitedQuantity kLimited[] = {
    {"min_GB/s", &Limit::min_gb_per_s, true, "GB/s",
     [](const Figure& figure) { return figure.what == "latency" ? 0.0 : figure.alg_gb_per_s(); }},
    {"max_us", &Limit::max_us, false, "us", [](const Figure& figure) { return figure.times.p50_us; }},
    {"max_99_us", &Limit::max_p99_us, false, "us (99 %)", [](const Figure& figure) { return figure.times.p99_us; }}};

void check_limit(const Limit& limit, const LimitedQuantity& quantity, const std::vector<Figure>& figures,
                 std::vector<std::string>& lines) {
  const double bound = *(limit.*quantity.bound);
  bool has_row = false;
  for (const Figure& figure : figures) {
    if (!figure.failed.empty() || !selects(limit, figure)) continue;
    const double value = quantity.value(figure);
    if (value <= 0) continue;
    has_row = true;
    if (quantity.is_least ? value >= bound : value <= bound) continue;
    lines.push_back(fmt::format("{}: {:.3f} {}, {} than {:.6g} ({})", row_name(figure.path, figure.what, figure.bytes),
                                value, quantity.unit, quantity.is_least ? "less" : "more", bound, limit.origin));
  }
  if (has_row) return;
  lines.push_back(fmt::format("{}: no measured row for {} {:.6g} ({}); {}",
                              row_name(limit.path, limit.what, limit.bytes), quantity.name, bound, limit.origin,
                              why_no_row(limit, figures)));
}

}  // namespace

absl::StatusOr<std::vector<Limit>> read_limits(const std::string& file, std::optional<double> tolerance_percent,
                                               const nlohmann::json& config) {
  const auto refuse = [&](std::string_view why) {
    return absl::InvalidArgumentError(fmt::format("--limits {}: {}", file, why));
  };
  const absl::StatusOr<std::string> text = read_file(file, kMaxLimitBytes, FileKind::any);
  if (!text.ok()) return absl::InvalidArgumentError(fmt::format("--limits {}", message_of(text.status())));
  nlohmann::json json;
  try {  // with an exception: it has line and column
    json = nlohmann::json::parse(*text);
  } catch (const nlohmann::json::exception& error) {
    return refuse(json_error_text(error));
  }
  const std::string name = std::filesystem::path(file).filename().string();
  absl::StatusOr<std::vector<Limit>> limits;
  if (json.is_array()) {
    if (tolerance_percent) return refuse("--tolerance is for a recorded run (-J), and this is a list of limits");
    limits = limits_of_list(json, name);
  } else if (is_recorded_run(json)) {
    if (!tolerance_percent) return refuse("a recorded run needs --tolerance PERCENT, such as --tolerance 20");
    limits = limits_of_run(json, name, *tolerance_percent, config);
  } else {
    return refuse("neither a list of limits nor a run that `gradrail bench SUITE -J FILE` recorded");
  }
  if (!limits.ok()) return refuse(message_of(limits.status()));
  if (limits->empty()) return refuse("has no limit, and each run would keep it");
  return limits;
}

std::vector<Limit> bandwidth_limits(const std::vector<Figure>& figures, double min_gb_per_s,
                                    const std::string& origin) {
  // Sizes ascend, so that the last entry of a path has its largest size.
  std::map<std::string, Limit> largest;
  for (const Figure& figure : figures) {
    if (!figure.failed.empty() || figure.alg_bytes <= 0 || figure.what == "latency") continue;
    largest[figure.path + "\n" + figure.what] = {.origin = origin,
                                                 .path = figure.path,
                                                 .what = figure.what,
                                                 .bytes = figure.bytes,
                                                 .min_gb_per_s = min_gb_per_s};
  }
  std::vector<Limit> limits;
  for (const auto& [name, limit] : largest) limits.push_back(limit);
  return limits;
}

std::vector<std::string> violations(const std::vector<Limit>& limits, const std::vector<Figure>& figures) {
  std::vector<std::string> lines;
  for (const Limit& limit : limits)
    for (const LimitedQuantity& quantity : kLimited)
      if (limit.*quantity.bound) check_limit(limit, quantity, figures, lines);
  return lines;
}

}  // namespace gradrail::bench
