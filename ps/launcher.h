#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

namespace gradrail::ps {

/// What a launcher has told this process by its environment.
struct Launch {
  enum class Role { by_rank, scheduler, ps, worker };
  Role role = Role::by_rank;         ///< by_rank: the first ranks are ps tasks, as many as a flag says
  std::optional<uint32_t> rank;      ///< by_rank: of size; a ps or worker: its task index, where that was told
  uint32_t size = 1;                 ///< ps tasks and workers together
  std::optional<uint32_t> ps_count;  ///< where the launcher tells
  std::string meet;                  ///< host:port where the first rank (or the scheduler) waits; "": nobody knows
  std::string job;                   ///< for people, and never the same for two jobs that run side by side
  std::string node;                  ///< what the launcher calls this host; "": nothing
};

/// The environment: name → value or null.
using Variables = std::function<const char*(const char*)>;

/// Reads torchrun's variables, ps-lite's, Open MPI's and Slurm's, the innermost launcher first: mpirun and torchrun are
/// started by srun, whose variables are still there. Nothing where none has started us, or us alone.
/// Errors  INVALID_ARGUMENT: variables that lack others, contradict each other or are no numbers; says which to set or
/// unset.
absl::StatusOr<std::optional<Launch>> read_launcher(const Variables& variable);
absl::StatusOr<std::optional<Launch>> read_launcher();

/// Slurm's "node[03-05,9],x7": node03 node04 node05 node9 x7.
/// Errors  INVALID_ARGUMENT: not such a list, or of more than 65,536 hosts.
absl::StatusOr<std::vector<std::string>> expand_nodes(std::string_view nodes);

}  // namespace gradrail::ps
