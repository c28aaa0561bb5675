#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "tools/gradrail/checkpoint_arrays.h"

namespace CLI {
class App;
}

namespace gradrail::tools {

/// The flags of `gradrail checkpoint` as typed.
struct CheckpointFlags {
  std::string verb;  ///< ls, verify, export, import
  std::vector<std::string> folders;
  ExportFlags exported;
  ImportFlags imported;
  std::string optimizer;  ///< import
};

/// Adds the verbs as subcommands; `flags` must stay valid until the line is parsed.
void add_checkpoint_flags(CLI::App& command, CheckpointFlags& flags);

/// `gradrail checkpoint ls|verify|export|import FOLDER…`: what is in checkpoint folders, whether it is whole, and the
/// arrays of a set to and from a file. Returns whether the verified set is whole. A folder without any whole set is
/// not. A set that lacks files beside whole ones comes from a crash: it is printed, no more.
/// Errors  NOT_FOUND: no such folder. INVALID_ARGUMENT names the flag. Else as export_arrays() and import_arrays().
absl::StatusOr<bool> run_checkpoint(const CheckpointFlags& flags);

}  // namespace gradrail::tools
