#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/status/statusor.h"

namespace gradrail::tools {

/// The flags of `gradrail checkpoint` as typed.
struct CheckpointFlags {
  std::string verb;  ///< ls, verify, export
  std::vector<std::string> folders;
  std::optional<uint64_t> step;  ///< export; default: the newest that is whole
  std::string out;               ///< export
  bool optimizer_state = false;  ///< export
};

void add_checkpoint_flags(CLI::App& command, CheckpointFlags& flags);

/// `gradrail checkpoint ls|verify|export FOLDER…`: what is in checkpoint folders, whether it is whole, and out of it
/// for NumPy. Returns whether what was to be verified is whole: a folder without any whole set is not; a set that lacks
/// files beside whole ones is what a crash leaves, and said, no more.
/// Errors  NOT_FOUND: no such folder. INVALID_ARGUMENT names the flag. export: as read_newest_set and write_npz.
absl::StatusOr<bool> run_checkpoint(const CheckpointFlags& flags);

}  // namespace gradrail::tools
