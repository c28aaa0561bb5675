#pragma once

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "launch/launcher/rendezvous_url.h"

namespace CLI {
class App;
}

namespace gradrail::bench {

/// The flags of a run over several processes.
struct ClusterOptions {
  std::string cluster;
  std::string ps_hosts;
  std::string worker_hosts;
  std::string job_name;
  int64_t task_index = 0;
  launch::RendezvousUrl rendezvous;  ///< tcp:// alone
  uint32_t servers = 1;

  void add_flags(CLI::App& app);
};

/// This process' place in a run over several. The first `servers` ranks are servers, the others workers.
struct Place {
  uint32_t rank = 0;
  uint32_t size = 1;  ///< 1: a separate run, which forks its processes
  uint32_t servers = 1;
  std::string rendezvous;  ///< host:port where rank 0 waits for the others
  std::string from;        ///< the source, for people: "Slurm"
  bool by_launcher = false;
};

/// Place by --cluster, --ps_hosts with --worker_hosts, or the launcher of this process: Slurm's srun, Open MPI's
/// mpirun, torchrun.
/// Errors  INVALID_ARGUMENT: a setting is missing; the text names it.
absl::StatusOr<Place> place_of(const ClusterOptions& options);

}  // namespace gradrail::bench
