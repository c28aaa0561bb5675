#include "ps/checkpoint/retention.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <vector>

#include "base/failpoint.h"
#include "base/status.h"
#include "fmt/format.h"
#include "ps/checkpoint/set.h"

namespace gradrail::ps {
namespace {

/// Counts removed files and keeps the first error.
struct Removal {
  void remove(const std::string& path) {
    failpoint("remove");
    if (unlink(path.c_str()) == 0) {
      failpoint("removed");
      ++removed;
    } else if (errno != ENOENT) {
      // ENOENT: another task, or an administrator, was faster.
      error.Update(absl::ErrnoToStatus(errno, fmt::format("checkpoint {}: remove", path)));
    }
  }
  size_t removed = 0;
  absl::Status error;
};

struct Choice {
  std::vector<CheckpointSet> kept;
  std::vector<CheckpointSet> superfluous;  ///< the newest first
};

Choice choose(const std::vector<CheckpointSet>& newest_first, const SavedSet& completed, uint32_t keep) {
  Choice choice;
  uint32_t kept = 0;
  uint64_t last_kept = UINT64_MAX;
  for (const CheckpointSet& set : newest_first) {
    // A later save may still be written, and a later step may be better than the run that returned to an earlier one.
    const bool later = set.saved_us > completed.saved_us || (set.complete() && set.global_step > completed.global_step);
    if (later || !set.unreadable.ok()) continue;  // its storage may be mounted again
    // A step that was saved twice counts once: the later save is first in this order.
    if (set.complete() && kept < keep && set.global_step != last_kept) {
      ++kept;
      last_kept = set.global_step;
      choice.kept.push_back(set);
    } else {
      choice.superfluous.push_back(set);
    }
  }
  return choice;
}

/// A run that has diverged must not remove the last state from which it can be repeated. Returns the step of this set.
std::optional<uint64_t> spare_finite_set(const std::string& folder, Choice& choice) {
  const auto is_good = [&](const CheckpointSet& set) { return set.complete() && is_finite(folder, set); };
  if (std::any_of(choice.kept.begin(), choice.kept.end(), is_good)) return std::nullopt;
  const auto last = std::find_if(choice.superfluous.begin(), choice.superfluous.end(), is_good);
  if (last == choice.superfluous.end()) return std::nullopt;
  const uint64_t step = last->global_step;
  choice.superfluous.erase(last);
  return step;
}

}  // namespace

absl::StatusOr<RemovedSets> remove_older_sets(const std::string& folder, const SavedSet& completed, uint32_t keep) {
  GRADRAIL_ASSIGN_OR_RETURN(const std::vector<CheckpointSet> sets, list_checkpoint_sets(folder));
  const bool is_there = std::any_of(sets.begin(), sets.end(), [&](const CheckpointSet& set) {
    return set.global_step == completed.global_step && set.saved_us == completed.saved_us && set.complete();
  });
  // The older sets may be all that a restore can use if the new set is missing.
  if (!is_there || keep == 0) return RemovedSets();
  GRADRAIL_ASSIGN_OR_RETURN(const std::vector<UnfinishedFile> unfinished, list_unfinished_files(folder));
  Choice choice = choose(sets, completed, keep);
  const std::optional<uint64_t> finite_step = spare_finite_set(folder, choice);
  Removal removal;
  for (const CheckpointSet& set : choice.superfluous) {
    for (const uint32_t shard : set.present) removal.remove(set.path(folder, shard));
  }
  for (const UnfinishedFile& file : unfinished) {
    // A later temporary file belongs to a save that has just begun.
    if (file.saved_us < completed.saved_us) removal.remove(file.path);
  }
  if (!removal.error.ok()) return removal.error;
  return RemovedSets{.files = removal.removed, .finite_step = finite_step};
}

}  // namespace gradrail::ps
