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
  Failures failures;
  std::string model = "256M";
  uint32_t bucket_kib = 0;
  double compute_ms = -1;  ///< -1: of the layer list, or 0
  double compute_sigma = 0;
  std::string mode = "sync";
  std::string push = "fp32";
  std::string returns = "fp32";
  std::string optimizer = "sgd";
  std::string transport = "tcp";
  std::vector<std::string> costs;  ///< files
  std::string check;
  bool json = false;
};

void add_predict_flags(CLI::App& app, PredictFlags& flags);

/// Errors  INVALID_ARGUMENT names the flag. Also those of the files.
absl::StatusOr<Description> description_of(const PredictFlags& flags);

}  // namespace gradrail::bench::predict
