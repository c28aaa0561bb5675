#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "transport/context.h"
#include "transport/registry.h"

namespace gradrail::transport::shm {

absl::StatusOr<std::unique_ptr<Context>> open(const OpenOptions& options);

}  // namespace gradrail::transport::shm
