#pragma once

#include <string>
#include <vector>

#include "transport/registry.h"
#include "transport/ucx/network_device.h"

namespace gradrail::transport::ucx {

/// One UCX_<name>=value of ours, and why.
struct Setting {
  std::string name;
  std::string value;
};

/// What this transport asks of UCX where the user has not set it: every variable of the environment wins.
std::vector<Setting> settings(const OpenOptions& options, const std::vector<RdmaPort>& ports);

/// UCX as a guest in this process: quiet, and without its own handlers of SIGSEGV and its like, unless the user's
/// environment says otherwise. Once per process.
void tame_library();

}  // namespace gradrail::transport::ucx
