#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "ps/checkpoint.h"

namespace gradrail::ps {

/// Makes a checkpoint folder ready for a ps task and returns its identity: random digits in its file `gradrail-folder`,
/// written by whichever task comes first. Tasks whose identities differ have folders of one name on two hosts: sets
/// saved there would never be whole.
/// Errors  FAILED_PRECONDITION: it is no folder, or this user may not write there.
absl::StatusOr<std::string> prepare_checkpoint_folder(const std::string& folder);

/// Reads the newest complete set for a run with this schema and optimizer; null when the folder holds no set at all.
/// Errors  FAILED_PRECONDITION: all sets lack files (says which), or the set is of another model or optimizer.
///         DATA_LOSS: as read_checkpoint_set, with the older sets there are and how to go on from them.
absl::StatusOr<std::shared_ptr<const Checkpoint>> restore_newest(const std::string& folder, const Schema& schema,
                                                                 OptimizerKind optimizer);

}  // namespace gradrail::ps
