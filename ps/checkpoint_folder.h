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

/// Reads the newest set that is whole. Of newer ones, which lack files or are damaged, it warns: what is wrong with
/// which file, and that the run goes back.
/// Errors  NOT_FOUND: no file at all. FAILED_PRECONDITION: all sets lack files (says which). DATA_LOSS: all complete
///         ones are damaged; what is wrong with the newest, and how to go on.
absl::StatusOr<Checkpoint> read_newest_set(const std::string& folder);

/// One save, as the ps tasks of a run name it to each other.
struct SavedSet {
  uint64_t global_step = 0;
  uint64_t saved_us = 0;
};

/// What a run with this schema and optimizer begins from: read_newest_set(), or null where there is no set at all.
/// Errors  those of read_newest_set(). FAILED_PRECONDITION: the set is of another model or optimizer.
absl::StatusOr<std::shared_ptr<const Checkpoint>> restore_newest(const std::string& folder, const Schema& schema,
                                                                 OptimizerKind optimizer);

/// The same from this set and no other: another task of the run has begun from it.
/// Errors  FAILED_PRECONDITION: it is not there, or not all of it. DATA_LOSS.
absl::StatusOr<std::shared_ptr<const Checkpoint>> restore_set(const std::string& folder, const SavedSet& set,
                                                              const Schema& schema, OptimizerKind optimizer);

}  // namespace gradrail::ps
