#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "nlohmann/json_fwd.hpp"

namespace gradrail::bench {

/// Times of one operation, in microseconds.
struct Times {
  uint64_t count = 0;
  double min_us = 0.0;
  double max_us = 0.0;
  double p50_us = 0.0;
  double mean_us = 0.0;
  double stdev_us = 0.0;
  double p99_us = 0.0;
  double p999_us = 0.0;

  /// Sorts them. None: all zero.
  static Times of(std::vector<double>& micros);
};

/// What one path did at one size: a row of a run.
struct Figure {
  std::string path;    ///< how the bytes travelled, or what was run: "shm mapped", "momentum, 1 gradient fp32"
  std::string what;    ///< where a question has several figures a path: "latency", "bandwidth"; else ""
  uint64_t bytes = 0;  ///< of the message, gradient or buffer, one way
  uint64_t count = 0;  ///< elements of `type` in it
  std::string type = "float";
  Times times;                    ///< count, min, max over all rounds; the others: their median over the rounds
  std::vector<double> rounds_us;  ///< p50 of each round: what two runs are compared by
  double alg_bytes = 0.0;         ///< of one operation, for the bandwidth that its user sees
  double bus_bytes = 0.0;         ///< … and for the one that links or memory see
  uint64_t wrong = 0;             ///< elements or arrivals that were not what they had to be
  std::string failed;             ///< why there is no figure
  std::string why;                ///< of the path: what was wanted more and why it was not taken
  std::vector<std::pair<std::string, double>> stages;  ///< name, microseconds
  std::vector<std::pair<std::string, double>> more;    ///< what only this question has, with its unit in the name

  double alg_gb_per_s() const { return times.p50_us > 0 ? alg_bytes / times.p50_us * 1e-3 : 0.0; }
  double bus_gb_per_s() const { return times.p50_us > 0 ? bus_bytes / times.p50_us * 1e-3 : 0.0; }
};

/// The row of a path that cannot be measured.
Figure not_measured(const std::string& path, uint64_t bytes, const std::string& why);

/// Rounds of the same row as one. The first that failed stands for all.
Figure merge(const std::vector<Figure>& rounds);

nlohmann::json to_json(const Figure& figure);
/// Errors: nlohmann's exceptions; files of others go through compare.h, which catches them.
Figure figure_from(const nlohmann::json& json);

}  // namespace gradrail::bench
