#include "bench/driver/transports.h"

#include <algorithm>

#include "base/status.h"
#include "bench/driver/subprocess.h"
#include "fmt/format.h"
#include "fmt/ranges.h"
#include "nlohmann/json.hpp"
#include "transport/plugin_loader.h"
#include "transport/registry.h"

namespace gradrail::bench {
namespace {

constexpr std::string_view kEncrypting = "tcp";

/// Fills in what only opening it shows.
void try_to_open(const Options& options, TransportChoice& choice) {
  // A child opens it: the library of a plug-in may crash, hang, or start threads, which a later fork does not copy.
  Subprocess opens = Subprocess::start({{"do", "open transport"},
                                        {"name", choice.name},
                                        {"bind_host", options.bind_host},
                                        {"rdma_only", choice.rdma_only},
                                        {"ofi_provider", options.ofi_provider}});
  // A device that does not answer must not keep the run from the transports that work.
  const absl::StatusOr<nlohmann::json> answer = opens.result(Clock::now() + std::chrono::seconds(20));
  if (!answer.ok()) {
    choice.unusable = std::string(message_of(answer.status()));
  } else if (answer->contains("unusable")) {
    choice.unusable = answer->at("unusable").get<std::string>();
  } else {
    choice.gpu = {.why_no_dma_buf = answer->at("no_dma_buf"), .why_no_peer_memory = answer->at("no_peer_memory")};
  }
}

}  // namespace

nlohmann::json open_transport(const nlohmann::json& job) {
  const absl::StatusOr<const transport::Transport*> found =
      transport::find_transport(job.at("name").get<std::string>());
  if (!found.ok()) return {{"unusable", std::string(message_of(found.status()))}};
  const auto context = (*found)->open(
      {.bind_host = job.at("bind_host"), .rdma_only = job.at("rdma_only"), .ofi_provider = job.at("ofi_provider")});
  if (!context.ok()) return {{"unusable", std::string(message_of(context.status()))}};
  const transport::GpuTransferSupport& gpu = (*context)->capabilities().gpu;
  return {{"no_dma_buf", gpu.why_no_dma_buf}, {"no_peer_memory", gpu.why_no_peer_memory}};
}

absl::StatusOr<std::vector<TransportChoice>> choose_transports(const Options& options, bool with_sockets,
                                                               bool encrypt_data) {
  std::vector<std::string> names = options.transports;
  if (names.empty()) {
    for (const transport::Transport& transport : transport::transports())
      if (!transport.by_name_only) names.push_back(transport.name);
  }
  if (encrypt_data && std::find(names.begin(), names.end(), kEncrypting) == names.end()) {
    return absl::InvalidArgumentError(
        fmt::format("--encrypt-data: only {} encrypts data, and --transport {} leaves it out; give --transport {}",
                    kEncrypting, fmt::join(names, ","), kEncrypting));
  }
  std::vector<TransportChoice> choices;
  for (const std::string& name : names) {
    // A transport that is in the list twice is measured once.
    const auto is_same = [&](const TransportChoice& choice) { return choice.name == name; };
    if (std::any_of(choices.begin(), choices.end(), is_same)) continue;
    const absl::StatusOr<const transport::Transport*> found = transport::find_transport(name);
    if (!found.ok())
      return absl::Status(found.status().code(), fmt::format("--transport: {}", message_of(found.status())));
    TransportChoice choice{
        .name = name, .rdma_only = (*found)->plugin && !with_sockets, .ofi_provider = options.ofi_provider};
    try_to_open(options, choice);
    choices.push_back(choice);
    if (!encrypt_data || name != kEncrypting) continue;
    choice.encrypted = true;
    choices.push_back(std::move(choice));
  }
  return choices;
}

}  // namespace gradrail::bench
