#pragma once

#include <filesystem>
#include <string>

#include "absl/status/statusor.h"

namespace gradrail::gpu {

/// The kernel module by which RDMA drivers register GPU memory under its address, where there is no dma-buf: its name.
/// `sysfs` is for tests.
/// Errors  FAILED_PRECONDITION: none is loaded; says which to load.
absl::StatusOr<std::string> peer_memory_module(const std::filesystem::path& sysfs = "/sys");

}  // namespace gradrail::gpu
