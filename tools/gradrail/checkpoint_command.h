#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace CLI {
class App;
}

namespace gradrail::tools {

/// The flags of `gradrail checkpoint` as typed.
struct CheckpointFlags {
  std::string verb;  ///< ls, verify
  std::vector<std::string> folders;
};

/// Adds the verbs as subcommands; `flags` must stay valid until the line is parsed.
void add_checkpoint_flags(CLI::App& command, CheckpointFlags& flags);

/// `gradrail checkpoint ls|verify FOLDER…`: what is in checkpoint folders, and whether it is whole. Returns whether the
/// verified set is whole. A folder without any whole set is not. A set that lacks files beside whole ones comes from a
/// crash: it is printed, no more.
/// Errors  NOT_FOUND: no such folder. Else those of its files.
absl::StatusOr<bool> run_checkpoint(const CheckpointFlags& flags);

}  // namespace gradrail::tools
