#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "bench/predict/description.h"

namespace CLI {
class App;
}

namespace gradrail::bench::predict {

/// The request of `gradrail predict`, as typed.
struct PredictFlags {
  Cluster cluster;
  Load load;
  Failures failures;
  std::string model = "256M";
  uint32_t bucket_kib = 0;
  uint32_t slot_mib = 32;
  double compute_ms = -1;  ///< -1: of the layer list, or 0
  std::string mode = "sync";
  std::string push = "fp32";
  std::string returns = "fp32";
  std::string optimizer = "sgd";
  std::string transport = "tcp";
  std::vector<std::string> costs;                              ///< files
  double message_us = -1, wake_us = -1, memory_gb_per_s = -1;  ///< replace those costs; -1: not given
  std::vector<std::string> sweep;
  double save_cost_s = -1;   ///< -1: not given
  std::string failure_flag;  ///< a given flag that has an effect with --mtbf only; "": none
  std::string check;
  double tolerance = 0.1;
  bool json = false;
};

void add_predict_flags(CLI::App& app, PredictFlags& flags);

/// Sets one value by the name of its flag, such as "workers". For --sweep.
/// Errors  INVALID_ARGUMENT names the flag and the value.
absl::Status set_value(const std::string& name, const std::string& value, PredictFlags& flags);

/// Errors  INVALID_ARGUMENT names the flag. Also those of the files.
absl::StatusOr<Description> description_of(const PredictFlags& flags);

}  // namespace gradrail::bench::predict
