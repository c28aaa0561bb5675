#include "base/check.h"
#include "gradrail/cluster.h"
#include "tests/fuzz/fuzz.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t bytes) {
  using namespace gradrail;
  const absl::StatusOr<TfConfig> config = parse_tf_config(gradrail::fuzz::text_of(data, bytes));
  if (!config.ok()) {
    gradrail::fuzz::check_refusal(config.status(), absl::StatusCode::kInvalidArgument, "TF_CONFIG");
    return 0;
  }
  if (!config->task) return 0;
  const TaskId& task = *config->task;
  GRADRAIL_CHECK(task.job == "ps" || task.job == "worker" || task.job == "evaluator");
  GRADRAIL_CHECK(task.job == "evaluator" || task.index < kMaxWorkers);
  if (!config->cluster) {
    GRADRAIL_CHECK(task.index == 0);
  } else if (task.job == "ps") {
    GRADRAIL_CHECK(task.index < config->cluster->ps.size());
  }
  return 0;
}
