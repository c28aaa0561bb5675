#pragma once

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "ps/checkpoint_folder.h"

namespace gradrail::ps {

/// Removes what a save has made superfluous: once `completed` is there, all but it and the complete sets of the keep-1
/// steps before it (the later one of a step that was saved twice), halves of older saves, and temporary files that
/// crashed writers left. Complete sets of later steps stay: a run that went back does not know what they are worth.
///
/// Who calls it: the first ps task of a run, asked by the chief when every task has written its part of `completed`.
/// The chief begins no save meanwhile, so that nothing of what is removed is being written; whatever was saved after
/// `completed` is left alone besides. Who restores meanwhile reads the newest set, which always stays, or finds a file
/// gone and looks again.
/// Returns the number of files removed; none unless all of `completed` is there, or when `keep` is 0.
/// Errors  those of the file system; what could be removed is.
absl::StatusOr<size_t> remove_older_sets(const std::string& folder, const SavedSet& completed, uint32_t keep);

}  // namespace gradrail::ps
