#include "bench/transports.h"

#include "base/status.h"
#include "bench/apart.h"
#include "transport/plugin_loader.h"
#include "transport/registry.h"

namespace gradrail::bench {
namespace {

std::string try_to_open(const transport::Transport& transport, const Options& options, bool rdma_only) {
  Apart opens([&]() -> nlohmann::json {
    const absl::Status status =
        transport.open({.bind_host = options.bind_host, .rdma_only = rdma_only, .ofi_provider = options.ofi_provider})
            .status();
    return status.ok() ? std::string() : std::string(message_of(status));
  });
  const absl::StatusOr<nlohmann::json> why = opens.result(Clock::now() + std::chrono::seconds(20));
  return why.ok() ? why->get<std::string>() : std::string(message_of(why.status()));
}

}  // namespace

absl::StatusOr<std::vector<TransportChoice>> choose_transports(const Options& options, bool with_sockets) {
  if (!options.plugin_dir.empty()) GRADRAIL_RETURN_IF_ERROR(transport::set_plugin_dir(options.plugin_dir));
  std::vector<std::string> names = options.transports;
  if (names.empty()) {
    for (const transport::Transport& transport : transport::transports())
      if (!transport.in_process_only && !transport.by_name_only) names.push_back(transport.name);
  }
  std::vector<TransportChoice> choices;
  for (const std::string& name : names) {
    const absl::StatusOr<const transport::Transport*> found = transport::find_transport(name);
    if (!found.ok()) return found.status();
    if ((*found)->in_process_only)
      return absl::InvalidArgumentError(name + " works within one process only: there is nothing to measure");
    const bool rdma_only = (*found)->plugin && !with_sockets;
    choices.push_back({.name = name,
                       .rdma_only = rdma_only,
                       .ofi_provider = options.ofi_provider,
                       .unusable = try_to_open(**found, options, rdma_only)});
  }
  return choices;
}

}  // namespace gradrail::bench
