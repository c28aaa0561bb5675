#pragma once

#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "ps/checkpoint/checkpoint.h"
#include "ps/checkpoint/reader.h"

namespace gradrail::ps {

/// The files of one save in a folder.
struct CheckpointSet {
  uint64_t global_step = 0;
  uint64_t saved_us = 0;
  uint32_t shard_count = 0;
  std::set<uint32_t> present;  ///< names in the folder, whatever they are
  uint64_t bytes = 0;
  absl::Status unreadable;  ///< reason why the first of its files cannot be opened

  bool complete() const { return present.size() == shard_count; }
  /// Text for an incomplete set: "step 300 is incomplete: of 3 shards 2 are there, missing 1".
  std::string missing() const;
  std::string path(const std::string& folder, uint32_t shard_index) const;
};

/// Lists the sets of a folder, the newest first: by global step, then by time.
absl::StatusOr<std::vector<CheckpointSet>> list_checkpoint_sets(const std::string& folder);

/// A file under its temporary name: it is being written, or its writer crashed.
struct UnfinishedFile {
  std::string path;
  uint64_t saved_us = 0;
};
absl::StatusOr<std::vector<UnfinishedFile>> list_unfinished_files(const std::string& folder);

/// Opens all files of a complete set and compares their headers: one save, one model, no gap.
/// Errors  As CheckpointReader. DATA_LOSS: a file does not belong to its set; names the file and the reason.
absl::StatusOr<std::vector<CheckpointReader>> open_checkpoint_set(const std::string& folder, const CheckpointSet& set);

/// Whether no file of the set has NaN or infinity in its parameters, by its header. A file that cannot be read
/// counts as one without.
bool is_finite(const std::string& folder, const CheckpointSet& set);

/// Reads the set with all values, as one checkpoint over the whole model.
absl::StatusOr<Checkpoint> read_checkpoint_set(const std::string& folder, const CheckpointSet& set);

}  // namespace gradrail::ps
