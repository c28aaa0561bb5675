#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "nlohmann/json_fwd.hpp"

namespace gradrail::bench {

/// Shares of the operations at which a distribution is stored: evenly in the middle, closer at the slow ones. They are
/// enough for a curve; the times themselves would be a million a row.
inline constexpr std::array kShares{0.001, 0.005, 0.01, 0.025, 0.05, 0.1,  0.15,  0.2,   0.25,  0.3,    0.35,
                                    0.4,   0.45,  0.5,  0.55,  0.6,  0.65, 0.7,   0.75,  0.8,   0.85,   0.9,
                                    0.925, 0.95,  0.96, 0.97,  0.98, 0.99, 0.995, 0.998, 0.999, 0.9995, 0.9999};

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
  std::vector<double> distribution_us{};  ///< time within which each of kShares ended; empty: not stored

  /// Sorts them. None: all zero.
  static Times of(std::vector<double>& micros);
};

/// The measurement of one path at one size: a row of a run.
struct Figure {
  std::string path;    ///< way of the bytes, or the measured operation: "shm mapped", "momentum, 1 gradient fp32"
  std::string what;    ///< set if a suite has several figures a path: "latency", "bandwidth"; otherwise ""
  uint64_t bytes = 0;  ///< size of the message, gradient or buffer, one way
  uint64_t count = 0;  ///< elements of `type` in it
  std::string type = "float";
  Times times;                    ///< count, min, max over all rounds; the others: their median over the rounds
  std::vector<double> rounds_us;  ///< p50 of each round: what two runs are compared by
  double alg_bytes = 0.0;         ///< bytes of one operation, for the bandwidth of its user
  double bus_bytes = 0.0;         ///< … and for the bandwidth of links or memory
  uint64_t wrong = 0;             ///< elements or arrivals that were not what they had to be
  std::string failed;             ///< reason why there is no figure
  bool failed_in_use = false;     ///< the path was usable: the failure is never a normal row; not in files
  std::string why;                ///< reason for the path: the preferred one, and why it was not taken
  std::vector<std::pair<std::string, double>> stages;  ///< name, microseconds; in the order of a step
  std::string why_no_stages;                           ///< reason, if stages were requested; not in files
  std::vector<std::pair<std::string, double>> more;    ///< values of this suite only, with the unit in the name

  double alg_gb_per_s() const { return times.p50_us > 0 ? alg_bytes / times.p50_us * 1e-3 : 0.0; }
  double bus_gb_per_s() const { return times.p50_us > 0 ? bus_bytes / times.p50_us * 1e-3 : 0.0; }
};

/// Share by share, the median of those that have one: of rounds, or of workers.
std::vector<double> median_distribution(const std::vector<Times>& times);

/// The row of a path that cannot be measured.
Figure not_measured(const std::string& path, uint64_t bytes, const std::string& why);

/// Merges rounds of the same row. The first that failed represents all.
Figure merge(const std::vector<Figure>& rounds);

nlohmann::json to_json(const Figure& figure);
/// Reads a figure. Errors: nlohmann's exceptions; run_file.h reads files of others, and catches them.
Figure figure_from(const nlohmann::json& json);

}  // namespace gradrail::bench
