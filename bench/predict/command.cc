#include "bench/predict/command.h"

#include "base/status.h"
#include "bench/predict/check.h"
#include "bench/predict/goodput.h"
#include "bench/predict/output.h"
#include "bench/predict/simulation.h"
#include "fmt/format.h"
#include "nlohmann/json.hpp"

namespace gradrail::bench::predict {

absl::StatusOr<bool> run_predict(const PredictFlags& flags) {
  if (!flags.check.empty()) return run_check(flags);
  GRADRAIL_ASSIGN_OR_RETURN(const Description description, description_of(flags));
  Prediction prediction;
  GRADRAIL_ASSIGN_OR_RETURN(prediction.outcome, simulate(description));
  if (description.failures.mtbf_hours > 0) {
    const double step_s = prediction.outcome.step_s_mean;
    prediction.without_backup = goodput_of(description, step_s, /*has_backup=*/false);
    prediction.with_backup = goodput_of(description, step_s, /*has_backup=*/true);
  }
  if (flags.json)
    fmt::print("{}\n", to_json(description, prediction).dump(2, ' ', false, nlohmann::json::error_handler_t::replace));
  else
    print(description, prediction);
  return true;
}

}  // namespace gradrail::bench::predict
