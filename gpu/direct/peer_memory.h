#pragma once

#include <filesystem>
#include <string>

#include "absl/status/statusor.h"

namespace gradrail::gpu {

/// Name of the kernel module by which RDMA drivers register GPU memory under its address, where there is no dma-buf.
/// `sysfs` is for tests.
/// Errors  FAILED_PRECONDITION: none is loaded; the text names the one to load.
absl::StatusOr<std::string> peer_memory_module(const std::filesystem::path& sysfs = "/sys");

}  // namespace gradrail::gpu
