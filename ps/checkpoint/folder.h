#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "ps/checkpoint/checkpoint.h"

namespace gradrail::ps {

/// Makes a checkpoint folder ready for a ps task and returns its identity: random digits in its file `gradrail-folder`,
/// written by the first task. Different identities mean that two hosts have folders of the same name: sets saved
/// there would never be complete.
/// Errors  FAILED_PRECONDITION: not a folder, or this user may not write there.
absl::StatusOr<std::string> prepare_checkpoint_folder(const std::string& folder);

/// Reads the newest undamaged complete set of `run`, or of any run (0). Logs a warning for each newer set that cannot
/// be used: the file, the damage, and that the run goes back.
/// Errors  NOT_FOUND: no file. FAILED_PRECONDITION: all sets lack files or are of other runs; the text names them.
///         DATA_LOSS: all complete sets are damaged; describes the newest, and how to continue.
absl::StatusOr<Checkpoint> read_newest_set(const std::string& folder, uint64_t run = 0);

/// Identifies one save among the ps tasks of a run.
struct SavedSet {
  uint64_t global_step = 0;
  uint64_t saved_us = 0;
};

/// Content of a set from which a run can begin.
struct ExpectedContent {
  Schema schema;
  OptimizerKind optimizer = OptimizerKind::sgd;
  uint64_t run = 0;  ///< CheckpointHeader::run; 0: of any run. A set without a number fits each run.
};

/// Returns the checkpoint from which a run begins, as read_newest_set() for the expected run. Null: the folder has no
/// set.
/// Errors  Those of read_newest_set(). FAILED_PRECONDITION: the set is of another model or optimizer, or all sets are
///         of other runs.
/// shared_ptr: the shards of a task share the model, and the last one that has copied its part frees it.
absl::StatusOr<std::shared_ptr<const Checkpoint>> restore_newest(const std::string& folder,
                                                                 const ExpectedContent& expected);

/// The same for exactly this set: another task of the run has begun from it.
/// Errors  FAILED_PRECONDITION: files of the set are missing, or as restore_newest(). DATA_LOSS: the set is damaged.
/// shared_ptr: as restore_newest().
absl::StatusOr<std::shared_ptr<const Checkpoint>> restore_set(const std::string& folder, const SavedSet& set,
                                                              const ExpectedContent& expected);

}  // namespace gradrail::ps
