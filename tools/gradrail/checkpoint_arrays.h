#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "ps/protocol/optimizer_settings.h"

namespace gradrail::tools {

/// `gradrail checkpoint export` as typed.
struct ExportFlags {
  std::string folder;
  std::string out;               ///< NAME.safetensors, or else an .npz file
  std::optional<uint64_t> step;  ///< default: the newest that is whole
  bool optimizer_state = false;
};

/// Writes one array for each tensor of a checkpoint. The state has the names <tensor>:velocity and <tensor>:collected,
/// or <tensor>:m and <tensor>:v. :global_step is a scalar of int64. The metadata of a .safetensors file name the
/// optimizer.
/// Errors  As read_newest_set(), write_safetensors() and write_npz().
absl::Status export_arrays(const ExportFlags& flags);

/// `gradrail checkpoint import` as typed.
struct ImportFlags {
  std::string folder;                      ///< is made if it does not exist
  std::string from;                        ///< .safetensors
  std::optional<OptimizerKind> optimizer;  ///< default: the one that the file names
};

/// Writes a checkpoint from the arrays of a file, so that a run with this folder continues there. The tensors have the
/// order of the file. Without arrays of state, the state is zero, and the step must be 0 if the optimizer has a state.
/// Errors  FAILED_PRECONDITION: the folder has a checkpoint. INVALID_ARGUMENT names the array and the remedy. Else as
///         read_safetensors(), prepare_checkpoint_folder() and write_checkpoint().
absl::Status import_arrays(const ImportFlags& flags);

}  // namespace gradrail::tools
