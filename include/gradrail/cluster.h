#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "gradrail/export.h"

namespace gradrail {

constexpr uint16_t kDefaultPort = 2222;

/// The address of a task that a sparse description leaves out. It is not an address: parse_host_port() refuses it.
constexpr char kUnknownAddress[] = "address not given";

/// The tasks of a run as in TensorFlow's ClusterSpec: "host:port" of every task, by job. Worker 0 is the chief. A job
/// named `chief` (one task) becomes worker 0 and increments the index of the others.
struct ClusterSpec {
  std::vector<std::string> ps;       ///< kUnknownAddress for others than the own ps of a sparse description
  std::vector<std::string> workers;  ///< kUnknownAddress at the indexes that a sparse description leaves out
  bool chief_job = false;
  bool sparse = false;  ///< the run may have more workers than are known here

  bool operator==(const ClusterSpec&) const = default;
};

struct TaskId {
  std::string job;  ///< "ps" or "worker"
  uint32_t index = 0;
};

struct HostPort {
  std::string host;  ///< IPv6 without brackets
  uint16_t port = kDefaultPort;
};

/// "host", "host:port" or "[v6]:port". Port 0 binds to any port.
/// Errors  INVALID_ARGUMENT names the mistake.
GRADRAIL_EXPORT absl::StatusOr<HostPort> parse_host_port(std::string_view text);
GRADRAIL_EXPORT std::string to_string(const HostPort& address);

/// A comma-separated list of such addresses, each as to_string() writes it. Empty parts of the list are ignored.
/// Errors  INVALID_ARGUMENT names the mistake, also for a list without an address.
GRADRAIL_EXPORT absl::StatusOr<std::vector<std::string>> parse_host_list(std::string_view list);

/// {"ps": ["10.0.0.1:2222"], "worker": ["10.0.0.2:2222", …], "chief": […]}, bare or below "cluster";
/// lists may also be objects of index → address. Only the object of workers may have gaps: a worker needs every ps.
/// Below "sparseCluster" other workers than the own one are left out.
/// `source` names the text in errors.
/// Errors  INVALID_ARGUMENT: `source`, the place, and the mistake (not JSON, no ps, no worker, unknown job or key, a
///         key twice, not an address, the same address twice).
GRADRAIL_EXPORT absl::StatusOr<ClusterSpec> parse_cluster(std::string_view json, std::string_view source);
GRADRAIL_EXPORT absl::StatusOr<ClusterSpec> read_cluster_file(const std::string& path);

/// Comma-separated lists as the tutorials pass them in --ps_hosts and --worker_hosts. `source` names them in errors.
GRADRAIL_EXPORT absl::StatusOr<ClusterSpec> cluster_from_hosts(std::string_view ps_hosts, std::string_view worker_hosts,
                                                               std::string_view source = "--ps_hosts/--worker_hosts");

struct TfConfig {
  std::optional<ClusterSpec> cluster;  ///< none: the variable is "{}", or its "cluster" has no job
  std::optional<TaskId> task;          ///< its job may also be "evaluator"
};
/// TensorFlow's environment variable: {"cluster": {…}, "task": {"type": "worker", "index": 0}}. The index may be a
/// string; the chief and the evaluator need none. "sparseCluster" of Kubeflow in the place of "cluster" has the own
/// address alone in the job of the task.
/// Errors  INVALID_ARGUMENT names the mistake, also an unknown key, and a task other than the first worker without a
///         cluster.
GRADRAIL_EXPORT absl::StatusOr<TfConfig> parse_tf_config(std::string_view json);

/// Translates the job name and index of a user (`chief` included). A worker index beyond the list is legal up to
/// kMaxWorkers, because workers may join later.
/// Errors  INVALID_ARGUMENT: no such job or no such ps task, or a worker that a sparse description leaves out.
GRADRAIL_EXPORT absl::StatusOr<TaskId> resolve_task(const ClusterSpec& cluster, std::string_view job, int64_t index);

/// Whether a job has one task, so that users may leave out its index: chief, master and evaluator.
GRADRAIL_EXPORT bool has_one_task(std::string_view job);

/// A shard keeps an entry for each index below the highest one.
constexpr uint32_t kMaxWorkers = 4096;

}  // namespace gradrail
