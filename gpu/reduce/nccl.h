#pragma once

#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "gpu/reduce/nccl_abi.h"

namespace gradrail::gpu {

/// NCCL, found when the program runs.
struct NcclLibrary {
  nccl::Functions api;
  std::string version;  ///< "2.28.9"

  absl::Status status(nccl::Result result, std::string_view operation) const;
};

/// The first call loads the library.
/// Errors  FAILED_PRECONDITION: the library is missing or too old; the message names the package to install.
absl::StatusOr<const NcclLibrary*> nccl_library();

}  // namespace gradrail::gpu
