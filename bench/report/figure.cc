#include "bench/report/figure.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "fmt/format.h"
#include "nlohmann/json.hpp"

namespace gradrail::bench {
namespace {

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  // The upper one of two middle values: a value that was measured, not a mean of two.
  return values.empty() ? 0.0 : values[values.size() / 2];
}

nlohmann::json pairs(const std::vector<std::pair<std::string, double>>& list) {
  nlohmann::json object = nlohmann::json::object();
  for (const auto& [name, value] : list) object[name] = value;
  return object;
}

/// A list keeps its order, which objects do not; earlier runs have objects.
std::vector<std::pair<std::string, double>> pairs_from(const nlohmann::json& object) {
  if (object.is_array()) return object.get<std::vector<std::pair<std::string, double>>>();
  std::vector<std::pair<std::string, double>> list;
  for (const auto& [name, value] : object.items()) list.emplace_back(name, value.get<double>());
  return list;
}

nlohmann::json distribution_json(const std::vector<double>& distribution_us) {
  nlohmann::json object = nlohmann::json::object();
  for (size_t i = 0; i < distribution_us.size(); ++i) object[fmt::format("{}", kShares[i])] = distribution_us[i];
  return object;
}

/// Reads a distribution. Other shares than ours are those of another version, and none in earlier ones.
std::vector<double> distribution_from(const nlohmann::json& result) {
  std::vector<double> distribution_us;
  const nlohmann::json object = result.value("distribution_us", nlohmann::json::object());
  for (const double share : kShares) {
    // Found by the text of the share, as distribution_json() writes it.
    const auto found = object.find(fmt::format("{}", share));
    if (found == object.end()) return {};
    distribution_us.push_back(found->get<double>());
  }
  return distribution_us;
}

/// Entry by entry, since a row keeps its entries from round to round.
std::vector<std::pair<std::string, double>> medians(const std::vector<Figure>& rounds,
                                                    std::vector<std::pair<std::string, double>> Figure::*list) {
  std::vector<std::pair<std::string, double>> merged = rounds.front().*list;
  for (size_t i = 0; i < merged.size(); ++i) {
    std::vector<double> values;
    for (const Figure& round : rounds)
      if (i < (round.*list).size()) values.push_back((round.*list)[i].second);
    merged[i].second = median(values);
  }
  return merged;
}

/// Reads a count; the form of json.at(). An exception for 1e300 and -1: their conversion is undefined.
uint64_t count_in(const nlohmann::json& json, const char* name) {
  const nlohmann::json& value = json.at(name);
  if (!value.is_number_unsigned())
    throw nlohmann::json::type_error::create(302, fmt::format("{} is no whole number", name), &value);
  return value.get<uint64_t>();
}

}  // namespace

Times Times::of(std::vector<double>& micros) {
  if (micros.empty()) return {};
  // The sort is in place: a copy of a million times would cost memory in the process that is measured.
  std::sort(micros.begin(), micros.end());
  const auto n = static_cast<double>(micros.size());
  // Nearest rank, without interpolation: each figure is a time that was measured.
  const auto at = [&](double share) { return micros[std::min(micros.size() - 1, static_cast<size_t>(share * n))]; };
  const double mean = std::accumulate(micros.begin(), micros.end(), 0.0) / n;
  std::vector<double> distribution_us(kShares.size());
  std::transform(kShares.begin(), kShares.end(), distribution_us.begin(), at);
  double squares = 0.0;
  for (const double value : micros) squares += (value - mean) * (value - mean);
  return {.count = micros.size(),
          .min_us = micros.front(),
          .max_us = micros.back(),
          .p50_us = at(0.5),
          .mean_us = mean,
          .stdev_us = micros.size() > 1 ? std::sqrt(squares / (n - 1)) : 0.0,
          .p99_us = at(0.99),
          .p999_us = at(0.999),
          .distribution_us = std::move(distribution_us)};
}

std::vector<double> median_distribution(const std::vector<Times>& times) {
  std::vector<double> merged;
  for (size_t i = 0; i < kShares.size(); ++i) {
    std::vector<double> values;
    for (const Times& one : times)
      if (i < one.distribution_us.size()) values.push_back(one.distribution_us[i]);
    if (values.empty()) return {};
    merged.push_back(median(std::move(values)));
  }
  return merged;
}

Figure not_measured(const std::string& path, uint64_t bytes, const std::string& why) {
  Figure figure;
  figure.path = path;
  figure.bytes = bytes;
  figure.failed = why;
  return figure;
}

Figure merge(const std::vector<Figure>& rounds) {
  for (const Figure& round : rounds)
    // One failed round fails the figure: a median over the others would hide it.
    if (!round.failed.empty()) return round;
  Figure merged = rounds.front();
  const auto over_rounds = [&](double Times::*value) {
    std::vector<double> values;
    values.reserve(rounds.size());
    for (const Figure& round : rounds) values.push_back(round.times.*value);
    return median(std::move(values));
  };
  for (double Times::*value : {&Times::p50_us, &Times::mean_us, &Times::stdev_us, &Times::p99_us, &Times::p999_us})
    merged.times.*value = over_rounds(value);
  std::vector<Times> times;
  times.reserve(rounds.size());
  for (const Figure& round : rounds) times.push_back(round.times);
  merged.times.distribution_us = median_distribution(times);
  // Counts are summed below, and the first round is among the summands.
  merged.times.count = merged.wrong = 0;
  merged.rounds_us.clear();
  for (const Figure& round : rounds) {
    merged.times.count += round.times.count;
    // Extremes are over all rounds: a median of maxima would hide the slowest operation.
    merged.times.min_us = std::min(merged.times.min_us, round.times.min_us);
    merged.times.max_us = std::max(merged.times.max_us, round.times.max_us);
    merged.wrong += round.wrong;
    // gradrail-report compares two runs by these values.
    merged.rounds_us.push_back(round.times.p50_us);
  }
  merged.stages = medians(rounds, &Figure::stages);
  merged.more = medians(rounds, &Figure::more);
  return merged;
}

nlohmann::json to_json(const Figure& f) {
  return {{"path", f.path},
          {"what", f.what},
          {"size", f.bytes},
          {"count", f.count},
          {"type", f.type},
          {"percentiles",
           {{"iterations", f.times.count},
            {"min_us", f.times.min_us},
            {"max_us", f.times.max_us},
            {"p50_us", f.times.p50_us},
            {"mean_us", f.times.mean_us},
            {"stdev_us", f.times.stdev_us},
            {"p99_us", f.times.p99_us},
            {"p999_us", f.times.p999_us}}},
          {"distribution_us", distribution_json(f.times.distribution_us)},
          {"rounds_us", f.rounds_us},
          {"alg_bytes", f.alg_bytes},
          {"bus_bytes", f.bus_bytes},
          // Derived from the fields above, for readers of the file; figure_from() computes them again.
          {"alg_bw", f.alg_gb_per_s()},
          {"bus_bw", f.bus_gb_per_s()},
          {"nwrong", f.wrong},
          {"failed", f.failed},
          {"why", f.why},
          {"stages", f.stages},
          {"more", pairs(f.more)}};
}

Figure figure_from(const nlohmann::json& json) {
  const nlohmann::json& times = json.at("percentiles");
  return {.path = json.at("path"),
          .what = json.at("what"),
          .bytes = count_in(json, "size"),
          .count = count_in(json, "count"),
          .type = json.at("type"),
          .times = {.count = count_in(times, "iterations"),
                    .min_us = times.at("min_us"),
                    .max_us = times.at("max_us"),
                    .p50_us = times.at("p50_us"),
                    .mean_us = times.at("mean_us"),
                    .stdev_us = times.at("stdev_us"),
                    .p99_us = times.at("p99_us"),
                    .p999_us = times.at("p999_us"),
                    .distribution_us = distribution_from(json)},
          .rounds_us = json.at("rounds_us"),
          .alg_bytes = json.at("alg_bytes"),
          .bus_bytes = json.at("bus_bytes"),
          .wrong = count_in(json, "nwrong"),
          .failed = json.at("failed"),
          .why = json.at("why"),
          .stages = pairs_from(json.at("stages")),
          .more = pairs_from(json.at("more"))};
}

}  // namespace gradrail::bench
