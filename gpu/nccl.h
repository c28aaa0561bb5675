#pragma once

#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "gpu/nccl_abi.h"

namespace gradrail::gpu {

/// NCCL, found when the program runs.
struct NcclLibrary {
  nccl::Functions api;
  std::string version;  ///< "2.28.9"

  absl::Status status(nccl::Result result, std::string_view operation) const;
};

/// Loaded by the first who asks.
/// Errors  FAILED_PRECONDITION: none, or one too old; says what to install.
absl::StatusOr<const NcclLibrary*> nccl_library();

}  // namespace gradrail::gpu
