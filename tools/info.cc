#include "tools/info.h"

#include <cstdio>
#include <memory>

#include "base/status.h"
#include "fmt/format.h"
#include "ps/optimizer.h"
#include "ps/training.h"
#include "transport/registry.h"
#include "worker/data/dataset.h"

namespace gradrail::tools {
namespace {

/// Opens the transport and listens: whether it is usable is tried, not guessed.
std::string try_transport(const transport::Transport& transport) {
  const absl::StatusOr<std::unique_ptr<transport::Context>> context = transport.open({});
  if (!context.ok()) return fmt::format("NOT usable: {}", message_of(context.status()));
  const absl::StatusOr<std::string> address = (*context)->listen(transport.same_host_only ? "" : "127.0.0.1:0");
  if (!address.ok()) return fmt::format("NOT usable: {}", message_of(address.status()));
  const transport::Capabilities can = (*context)->capabilities();
  return fmt::format("usable ({}{}{} messages to {} B)", can.one_sided ? "one-sided, " : "",
                     can.direct_map ? "maps peers' memory, " : "", can.ordered_puts ? "ordered," : "unordered,",
                     can.max_message_bytes);
}

/// Of ucx and ofi, which run over sockets too: whether an RDMA device would carry the bytes. `auto` takes them only
/// then.
std::string try_rdma(const transport::Transport& transport) {
  const absl::StatusOr<std::unique_ptr<transport::Context>> context = transport.open({.rdma_only = true});
  return context.ok() ? "by an RDMA device" : fmt::format("not by an RDMA device: {}", message_of(context.status()));
}

}  // namespace

int run_info() {
  fmt::print("gradrail {} (protocol {})\n", GRADRAIL_VERSION, ps::kProtocolVersion);
  fmt::print("kernels: {}\n", ps::apply_isa());
  fmt::print("transports, in order of preference:\n");
  for (const transport::Transport& transport : transport::transports()) {
    fmt::print("  {:9} {}; {}\n", transport.name, transport.purpose, try_transport(transport));
    if (transport.plugin && !transport.by_name_only) fmt::print("  {:9} {}\n", "", try_rdma(transport));
  }
  const absl::StatusOr<std::string> data = worker::default_mnist_folder();
  fmt::print("data: {}\n", data.ok() ? *data : std::string(message_of(data.status())));
  fmt::print("host: {}\n", transport::host_id());
  return 0;
}

}  // namespace gradrail::tools
