#include "bench/suites/exchange_ways.h"

#include <memory>

#include "base/status.h"
#include "bench/suites/device_variables.h"
#include "bench/suites/exchange_flags.h"
#include "fmt/format.h"

namespace gradrail::bench {
namespace {

Contestant refused(const std::string& name, const std::string& why) {
  return {name, [=](uint64_t bytes) { return std::vector<Figure>{not_measured(name, bytes, why)}; }};
}

/// Shortens the worker's sentence to the part that rejects this way. Any other failure is one of a path in use.
void take_reason(Figure& figure) {
  constexpr std::string_view kBefore = "as --gpu-direct requires: ",
                             kAfter = "; `gradrail doctor`";  // client_device.cc, negotiate.cc
  const size_t at = figure.failed.find(kBefore);
  figure.failed_in_use = !figure.failed.empty() && at == std::string::npos;
  if (at == std::string::npos) return;
  const size_t start = at + kBefore.size();
  figure.failed = figure.failed.substr(start, figure.failed.find(kAfter, start) - start);
}

/// Reason why this way does not use this transport, as far as it is known before the attempt.
std::string why_not(GpuTransfer out, const TransportChoice& choice) {
  if (!choice.unusable.empty()) return choice.unusable;
  std::string why;
  if (out == GpuTransfer::dma_buf) why = choice.gpu.why_no_dma_buf;
  if (out == GpuTransfer::peer_memory) why = choice.gpu.why_no_peer_memory;
  return why.empty() ? "" : fmt::format("{} {}", choice.title(), why);
}

}  // namespace

absl::StatusOr<std::vector<Way>> all_ways(const Options& options, bool encrypt_data) {
  std::vector<Way> ways;
  GRADRAIL_ASSIGN_OR_RETURN(const std::vector<TransportChoice> by_device,
                            choose_transports(options, false, encrypt_data));
  GRADRAIL_ASSIGN_OR_RETURN(const std::vector<TransportChoice> by_anything,
                            choose_transports(options, true, encrypt_data));
  // Both lists have the same transports in the same order: they differ in the permission of sockets only.
  for (size_t i = 0; i < by_device.size(); ++i) {
    const TransportChoice& device = by_device[i];
    if (device.rdma_only) ways.push_back({device.name + " by an RDMA device", device});
    // A transport uses the device if a device carries it: there is no second way to measure.
    if (device.rdma_only && device.unusable.empty()) continue;
    ways.push_back({device.rdma_only ? device.name + " without one" : device.title(), by_anything[i]});
  }
  return ways;
}

/// Contestant of a way. A refusal is determined once, not in each round: this may take a second.
Contestant way_contestant(const std::string& name, const ExchangeLoad& load, const TransportChoice& choice) {
  if (!choice.unusable.empty()) return refused(name, choice.unusable);
  // The pointer is shared: a std::function copies its captures, and all rounds must use one value.
  const auto failed = std::make_shared<std::string>();
  return {name, [=](uint64_t bytes) -> std::vector<Figure> {
            if (!failed->empty()) return {not_measured(name, bytes, *failed)};
            Figure figure = run_exchange(with(load, choice, bytes)).figure;
            take_reason(figure);
            *failed = figure.failed;
            // A failed run never had a connection that could name its path.
            if (!figure.failed.empty()) figure.path = name;
            return {figure};
          }};
}

std::vector<Contestant> gpu_contestants(const ExchangeLoad& load, const std::string& gpu, const absl::Status& opened,
                                        const std::vector<Way>& ways) {
  std::vector<Contestant> contestants;
  for (const GpuTransfer out : all_gpu_transfers()) {
    const char* const way = gpu_transfer_name(out);
    if (!opened.ok()) {
      contestants.push_back(refused(fmt::format("{} {}", gpu, way), std::string(message_of(opened))));
      continue;
    }
    ExchangeLoad device = load;
    device.gpu = gpu;
    // Each row permits one method, so that it fails where the worker would otherwise use staging.
    device.gpu_transfer = out;
    // A kernel of a GPU reads another process' GPU memory.
    if (out == GpuTransfer::ipc) device.ps_device = gpu;
    for (const auto& [transport, choice] : ways) {
      const std::string name = fmt::format("{}, {} {}", transport, gpu, way);
      const std::string why = why_not(out, choice);
      contestants.push_back(why.empty() ? way_contestant(name, device, choice) : refused(name, why));
    }
  }
  return contestants;
}

}  // namespace gradrail::bench
