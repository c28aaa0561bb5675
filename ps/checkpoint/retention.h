#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "ps/checkpoint/folder.h"

namespace gradrail::ps {

struct RemovedSets {
  size_t files = 0;
  std::optional<uint64_t>
      finite_step;  ///< step of the set that stays because later ones have NaN or infinity; none: no such
};

/// Removes the files that a complete save has made superfluous. `completed` stays, and so do the complete sets of the
/// keep-1 steps before it (of a step that was saved twice, the later one). Older sets are removed, and with them
/// incomplete older saves and temporary files of crashed writers. Complete sets of later steps stay: they may be better
/// than the state of a run that returned to an earlier step.
///
/// If all sets that stay have NaN or infinity in their parameters, the newest older set without them stays as well.
///
/// The first ps task of a run calls it on request of the chief, after every task has written its part of `completed`.
/// The chief begins no save meanwhile, so that no file is removed while it is written. Files saved after `completed`
/// are not touched. A restore at the same time reads the newest set, which always stays, or finds a file missing and
/// retries. Nothing is removed when files of `completed` are missing, or when `keep` is 0.
/// Errors  Those of the file system. The other files are removed nevertheless.
absl::StatusOr<RemovedSets> remove_older_sets(const std::string& folder, const SavedSet& completed, uint32_t keep);

}  // namespace gradrail::ps
