#pragma once

#include <string>
#include <vector>

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

/// What this transport asks of UCX where the user has not set it: every variable of the environment wins.
std::vector<Setting> settings(const OpenOptions& options, const std::vector<RdmaPort>& ports);

/// UCX as a guest in this process: quiet, and without its own handlers of SIGSEGV and its like, unless the user's
/// environment says otherwise. Changes the process's environment, once: as with any setenv, no other thread may be
/// looking at it just then.
void tame_library();

}  // namespace gradrail::transport::ucx
