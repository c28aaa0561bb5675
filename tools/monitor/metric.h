#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace gradrail::tools {

/// A metric and its samples as Prometheus has them, without a type of its library.
struct Metric {
  enum class Kind : uint8_t { counter, gauge, histogram };
  struct Sample {
    std::vector<std::pair<std::string, std::string>> labels;
    double value = 0.0;  ///< counter, gauge
    /// Histogram only: upper bounds, rising, and the count at or below each.
    /// Prometheus adds the bucket of infinity itself, out of `count`.
    std::vector<std::pair<double, uint64_t>> buckets;
    uint64_t count = 0;
    double sum = 0.0;
  };
  std::string name;  ///< name with its unit, which is one of the base units
  std::string help;
  Kind kind = Kind::gauge;
  std::vector<Sample> samples;
};
using Metrics = std::vector<Metric>;

}  // namespace gradrail::tools
