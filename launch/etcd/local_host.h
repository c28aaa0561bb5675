#pragma once

#include <string>

namespace gradrail::launch {

/// The address from which this host reaches a peer of gRPC, as ClientContext::peer() and ServerContext::peer() name it:
/// "ipv4:10.0.0.1:2222". Other hosts probably reach this host there. "": `peer` is not an IP address.
std::string local_host_towards(const std::string& peer);

}  // namespace gradrail::launch
