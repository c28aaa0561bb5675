#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace CLI {
class App;
}

namespace gradrail::tools {

/// The flags of `gradrail checkpoint` as typed.
struct CheckpointFlags {
  std::string verb;  ///< ls, verify, export
  std::vector<std::string> folders;
  std::optional<uint64_t> step;  ///< export; default: the newest that is whole
  std::string out;               ///< export
  bool optimizer_state = false;  ///< export
};

/// Adds the three verbs as subcommands; `flags` must stay valid until the line is parsed.
void add_checkpoint_flags(CLI::App& command, CheckpointFlags& flags);

/// `gradrail checkpoint ls|verify|export FOLDER…`: what is in checkpoint folders, whether it is whole, and out of it
/// for NumPy. Returns whether the verified set is whole. A folder without any whole set is not. A set that lacks
/// files beside whole ones comes from a crash: it is printed, no more.
/// Errors  NOT_FOUND: no such folder. INVALID_ARGUMENT names the flag. export: as read_newest_set and write_npz.
absl::StatusOr<bool> run_checkpoint(const CheckpointFlags& flags);

}  // namespace gradrail::tools
