// Cost of one put over a transport of gradrail. Two processes: latency and bandwidth of puts that notify the other
// of. bench/peers/compare_put.py runs it beside the libraries' own programs and bare loops.
#include <cstdio>

#include "CLI/CLI.hpp"
#include "base/log.h"
#include "base/status.h"
#include "bench/put/run.h"
#include "bench/put/transport.h"
#include "fmt/format.h"
#include "transport/plugin_loader.h"

namespace gradrail::bench {
namespace {

int run(PutTransport transport, const std::string& plugin_dir, const PutFlags& flags) {
  transport.bind_host = flags.bind_host;
  if (!plugin_dir.empty()) {
    if (absl::Status set = transport::set_plugin_dir(plugin_dir); !set.ok()) {
      fmt::print(stderr, "put: {}\n", message_of(set));
      return 2;
    }
  }
  const std::string name = fmt::format("gradrail {}", transport.name);
  return run_puts(name, flags,
                  [&](PairLink& link, size_t bytes) { return open_transport_end(transport, link, bytes); });
}

}  // namespace
}  // namespace gradrail::bench

int main(int argc, char** argv) {
  gradrail::bench::PutTransport transport;
  std::string plugin_dir;
  gradrail::bench::PutFlags flags;
  CLI::App app("What one put costs over a transport: latency and bandwidth", "put");
  app.add_option("--transport", transport.name, "tcp, shm, ucx, ofi or another plug-in's name")->capture_default_str();
  app.add_option("--ofi-provider", transport.ofi_provider, "ofi: name of the libfabric provider");
  app.add_option("--plugin-dir", plugin_dir, "folder with transport plug-ins");
  gradrail::bench::add_flags(app, flags);
  CLI11_PARSE(app, argc, argv);
  gradrail::start_log("bench");
  return gradrail::bench::run(transport, plugin_dir, flags);
}
