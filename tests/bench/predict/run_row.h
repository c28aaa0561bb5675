#pragma once

#include <cstdint>
#include <string>

#include "nlohmann/json.hpp"

namespace gradrail::bench::predict {

/// A row of a recorded run (`-J`).
inline nlohmann::json run_row(const std::string& path, uint64_t bytes, double p50_us) {
  return {{"path", path},
          {"what", ""},
          {"size", bytes},
          {"count", 1},
          {"type", "float"},
          {"percentiles",
           {{"iterations", 1},
            {"min_us", 1},
            {"max_us", 1},
            {"p50_us", p50_us},
            {"mean_us", 1},
            {"stdev_us", 0},
            {"p99_us", 1},
            {"p999_us", 1}}},
          {"distribution_us", nlohmann::json::array()},
          {"rounds_us", nlohmann::json::array()},
          {"alg_bytes", 1},
          {"bus_bytes", 1},
          {"nwrong", 0},
          {"failed", ""},
          {"why", ""},
          {"stages", nlohmann::json::array()},
          {"more", nlohmann::json::object()}};
}

}  // namespace gradrail::bench::predict
