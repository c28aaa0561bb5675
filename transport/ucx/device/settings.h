#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "transport/capabilities.h"
#include "transport/registry.h"
#include "transport/ucx/device/network_device.h"

namespace gradrail::transport::ucx {

/// A setting UCX_<name>=value that this transport selects.
struct Setting {
  std::string name;
  std::string value;
  /// Further names for ucp_config_modify: up to 1.13 settings of a kind of device have names without the kind. UCX
  /// silently drops unknown names.
  std::string short_name() const;
};

/// GPU memory support of a context. UCX chooses its own way to register GPU memory; these settings leave exactly one
/// way.
struct GpuHost {
  bool has_driver = false;
  bool has_peer_memory_module = false;  ///< present in the places where UCX searches for it
  static GpuHost look();
};

/// Settings of this transport for UCX where the user has not set them: every variable of the environment has priority.
std::vector<Setting> settings(const OpenOptions& options, const std::vector<RdmaPort>& ports, const GpuHost& gpu = {});

/// GPU memory that UCX takes in a context with these settings. With two ways available, the one that UCX cannot confuse
/// with the other is used. `memory_types` is UCX's own answer.
GpuTransferSupport gpu_transfers(uint64_t memory_types, const GpuHost& gpu);

/// Makes UCX a guest in this process: quiet, and without its own handlers of signals such as SIGSEGV, unless the user's
/// environment sets them. Changes the process's environment, once: as with any setenv, no other thread may read it at
/// the same time.
void tame_library(const GpuHost& gpu = {});

}  // namespace gradrail::transport::ucx
