#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "ps/protocol/optimizer_settings.h"
#include "ps/protocol/shard_map.h"

namespace gradrail::ps {

/// Header of one shard's checkpoint. A restore onto another number of shards reads the files of all shards.
struct CheckpointHeader {
  Schema schema;
  OptimizerConfig optimizer;
  ElementRange range;  ///< elements of the whole model
  uint64_t global_step = 0;
  /// Microseconds since 1970; one value for all files of a save. A run that returned to an earlier step saves a step
  /// twice.
  uint64_t saved_us = 0;
  /// JoinReply.run: a run that begins from a checkpoint has the number of the run that saved it. 0: of no run, an import.
  uint64_t run = 0;
  uint32_t shard_index = 0;
  uint32_t shard_count = 1;
  uint32_t bucket_bytes = 0;
  std::vector<uint64_t> bucket_versions;
  /// Updates of each fragment, in the order of layout_of(schema); 0 where this shard has none of it. Empty: all have
  /// global_step, as after an import.
  std::vector<uint64_t> fragment_steps;
  /// No parameter and no state of the optimizer is NaN or infinite. write_checkpoint() finds it out.
  bool is_finite = true;
};

/// Updates of one fragment in a whole checkpoint.
inline uint64_t step_of(const CheckpointHeader& header, size_t fragment) {
  return header.fragment_steps.size() > 1 ? header.fragment_steps[fragment] : header.global_step;
}

struct Checkpoint {
  CheckpointHeader header;
  std::vector<float> parameters;          ///< [range.count]
  std::vector<std::vector<float>> state;  ///< state_vectors(kind) × [range.count]
};

/// A view of a checkpoint, to write it without a copy.
struct CheckpointView {
  const CheckpointHeader* header = nullptr;
  absl::Span<const float> parameters;
  std::vector<absl::Span<const float>> state;
};

/// Half of the range of int64_t, which counts steps too: the other half is room for the run.
inline constexpr uint64_t kMaxGlobalStep = uint64_t{1} << 62;

/// Name of a shard's file in a checkpoint folder:
/// "gradrail-<global step, 12 digits>-<saved_us, 16 digits>-<shard>-of-<count>.ckpt".
/// Two saves never have the same name: no file is overwritten.
std::string checkpoint_file_name(uint64_t global_step, uint64_t saved_us, uint32_t shard_index, uint32_t shard_count);

/// Writes `<name>.tmp`, fsyncs it, renames it over `<name>` and fsyncs the folder. After a crash at any point the name
/// holds either nothing, the old file or the whole new one.
/// Errors  Name the failing call, the path and errno's text. RESOURCE_EXHAUSTED: the disk is full.
absl::Status write_checkpoint(const std::string& path, const CheckpointView& checkpoint);

/// Errors  DATA_LOSS names the file, the position and the damage. Damage is a truncated file, a wrong CRC32C of a
///         chunk, another format or version, or a contradiction between sizes. NOT_FOUND. Never allocates more than the
///         size of the file.
absl::StatusOr<Checkpoint> read_checkpoint(const std::string& path);

/// Global step of the newest complete set (all shards present) in a folder.
/// Errors  NOT_FOUND: there is none.
absl::StatusOr<uint64_t> newest_checkpoint(const std::string& folder);

/// Reads a complete set with any number of shards and returns it as one checkpoint over the whole model,
/// bucket_versions reduced to {global_step}. ps/checkpoint/set.h distinguishes sets of the same step.
absl::StatusOr<Checkpoint> read_checkpoint_set(const std::string& folder, uint64_t global_step);

}  // namespace gradrail::ps
