#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "transport/context.h"
#include "transport/registry.h"

namespace gradrail::transport::rails {

/// Contexts for a transport that binds a context to a device (ucx, ofi), one for each rail.
struct RailContexts {
  std::vector<std::unique_ptr<Context>> contexts;
  std::vector<size_t> rails;              ///< number of the rail of each context
  std::map<size_t, std::string> refused;  ///< reason for each rail without a context
};

/// Opens `transport` once for each of `hosts`: addresses of this host, "" for a rail without a route. A rail without a
/// usable device is left out while another one works.
/// Errors  No rail can be used: those of Transport::open for the first one.
absl::StatusOr<RailContexts> open_rails(const Transport& transport, OpenOptions options,
                                        absl::Span<const std::string> hosts);

/// The addresses of this host that reach the rails of "lanes:10.0.0.1:4000,10.1.0.1:4001", in their order; "": no
/// route.
std::vector<std::string> hosts_towards(const std::string& rails);

}  // namespace gradrail::transport::rails
