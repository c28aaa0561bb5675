#include "base/check.h"
#include "gradrail/cluster.h"
#include "nlohmann/json.hpp"
#include "tests/fuzz/fuzz.h"

namespace gradrail::ps {
namespace {

/// The JSON text of a cluster. Workers are an object, because a sparse description has gaps.
std::string text_of_cluster(const ClusterSpec& cluster) {
  nlohmann::json json = {{"ps", cluster.ps}, {"worker", nlohmann::json::object()}};
  const size_t first = cluster.chief_job ? 1 : 0;
  if (cluster.chief_job) json["chief"] = {cluster.workers[0]};
  for (size_t i = first; i < cluster.workers.size(); ++i) {
    if (cluster.workers[i] != kUnknownAddress) json["worker"][std::to_string(i - first)] = cluster.workers[i];
  }
  return cluster.sparse ? nlohmann::json{{"sparseCluster", json}}.dump() : json.dump();
}

void check_addresses(const std::vector<std::string>& addresses) {
  for (const std::string& address : addresses) {
    if (address == kUnknownAddress) continue;
    const absl::StatusOr<HostPort> parsed = parse_host_port(address);
    GRADRAIL_CHECK(parsed.ok() && parsed->port != 0 && to_string(*parsed) == address);
  }
}

}  // namespace
}  // namespace gradrail::ps

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t bytes) {
  using namespace gradrail;
  using namespace gradrail::ps;
  const absl::StatusOr<ClusterSpec> cluster = parse_cluster(gradrail::fuzz::text_of(data, bytes), "cluster.json");
  if (!cluster.ok()) {
    gradrail::fuzz::check_refusal(cluster.status(), absl::StatusCode::kInvalidArgument, "cluster.json: ");
    return 0;
  }
  GRADRAIL_CHECK(!cluster->ps.empty() && !cluster->workers.empty() && cluster->workers.size() <= kMaxWorkers);
  check_addresses(cluster->ps);
  check_addresses(cluster->workers);
  const absl::StatusOr<ClusterSpec> again = parse_cluster(text_of_cluster(*cluster), "again");
  GRADRAIL_CHECK(again.ok() && *again == *cluster);
  for (const char* job : {"ps", "worker", "chief"}) {
    for (const int64_t index : {-1, 0, 1, 4095, 4096}) {
      const absl::StatusOr<TaskId> task = resolve_task(*cluster, job, index);
      if (!task.ok()) continue;
      GRADRAIL_CHECK(task->job == "ps" ? task->index < cluster->ps.size() : task->index < kMaxWorkers);
    }
  }
  return 0;
}
