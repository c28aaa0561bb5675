#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "transport/capabilities.h"
#include "transport/registry.h"
#include "transport/ucx/network_device.h"

namespace gradrail::transport::ucx {

/// One UCX_<name>=value of ours.
struct Setting {
  std::string name;
  std::string value;
  /// What else ucp_config_modify may want to hear for it: up to 1.13 those of a kind of device answer to their
  /// names without the kind. UCX drops silently what it does not know.
  std::string short_name() const;
};

/// What of GPUs a context is opened for. UCX registers GPU memory by a way of its own choice; what it is told here
/// leaves it one.
struct GpuHost {
  bool has_driver = false;
  bool has_peer_memory_module = false;  ///< in the places where UCX looks for it
  static GpuHost look();
};

/// What this transport asks of UCX where the user has not set it: every variable of the environment wins.
std::vector<Setting> settings(const OpenOptions& options, const std::vector<RdmaPort>& ports, const GpuHost& gpu = {});

/// What UCX takes of a GPU in a context with these settings: of two ways the one that it cannot mistake for the other.
/// `memory_types` is UCX's own answer.
GpuWays gpu_ways(uint64_t memory_types, const GpuHost& gpu);

/// UCX as a guest in this process: quiet, and without its own handlers of SIGSEGV and its like, unless the user's
/// environment says otherwise. Changes the process's environment, once: as with any setenv, no other thread may be
/// looking at it just then.
void tame_library(const GpuHost& gpu = {});

}  // namespace gradrail::transport::ucx
