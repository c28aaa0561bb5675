#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "launch/launcher/pmix.h"

namespace gradrail::launch {

/// The part of this process in a job, as a launcher describes it by environment variables.
struct Launch {
  uint32_t rank = 0;        ///< below size; the first ranks are ps tasks, and a flag sets their number
  uint32_t size = 1;        ///< ps tasks and workers together
  std::string rendezvous;   ///< host:port of the first rank; "": unknown
  std::string why_unknown;  ///< reason why the rendezvous is unknown, for people
  std::string job;          ///< name for people; differs between jobs that run side by side
  std::string node;         ///< the launcher's name of this host; "": none
};

/// The environment: name → value or null.
using Variables = std::function<const char*(const char*)>;

/// query_pmix(), or its replacement in a test.
using PmixQuery = std::function<absl::StatusOr<PmixJob>()>;

/// Reads the variables of torchrun, Open MPI, Slurm and other launchers that serve PMIx. The innermost one
/// counts: srun may start mpirun or torchrun, and its variables are then still set. Nothing without a launcher, or for
/// a single process. PMIx is queried only where the variables do not name the host of rank 0.
/// Errors  INVALID_ARGUMENT: variables that are incomplete, contradict each other or are not numbers; names those to
///         set or to unset.
absl::StatusOr<std::optional<Launch>> read_launcher(const Variables& variable, const PmixQuery& query);
absl::StatusOr<std::optional<Launch>> read_launcher();

/// The variables of the launcher with other values for a program of worker `index`, because the launcher counts the ps
/// tasks too: rank and size, also on this host and by hosts, and MASTER_ADDR where worker 0 is not on `first_host`,
/// that of the first ps. Only variables that are set. `hosts`: of all workers, by index.
std::vector<std::pair<std::string, std::string>> worker_variables(const Variables& variable, uint32_t index,
                                                                  const std::vector<std::string>& hosts,
                                                                  const std::string& first_host);

/// Slurm's "node[03-05,9],x7": node03 node04 node05 node9 x7.
/// Errors  INVALID_ARGUMENT: not such a list, more than 65,536 hosts, or names of more than 255 characters.
absl::StatusOr<std::vector<std::string>> expand_nodes(std::string_view nodes);

}  // namespace gradrail::launch
