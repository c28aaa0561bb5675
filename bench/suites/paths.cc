// One command, every path. The same exchange over each way that this host has, from host memory and from a GPU's, and
// why not over the others.
#include <memory>

#include "base/status.h"
#include "bench/driver/suite.h"
#include "bench/suites/device_name.h"
#include "bench/suites/device_variables.h"
#include "bench/suites/exchange_flags.h"
#include "fmt/format.h"

namespace gradrail::bench {
namespace {

struct Way {
  std::string name;
  TransportChoice choice;
};

/// Each transport; those that run over devices and over sockets as two.
absl::StatusOr<std::vector<Way>> all_ways(const Options& options) {
  std::vector<Way> ways;
  GRADRAIL_ASSIGN_OR_RETURN(const std::vector<TransportChoice> by_device, choose_transports(options, false));
  GRADRAIL_ASSIGN_OR_RETURN(const std::vector<TransportChoice> by_anything, choose_transports(options, true));
  // Both lists have the same transports in the same order: they differ in the permission of sockets only.
  for (size_t i = 0; i < by_device.size(); ++i) {
    const TransportChoice& device = by_device[i];
    if (device.rdma_only) ways.push_back({device.name + " by an RDMA device", device});
    // Where a device carries it, the transport takes that device: there is no second way to measure.
    if (device.rdma_only && device.unusable.empty()) continue;
    ways.push_back({device.rdma_only ? device.name + " without one" : device.title(), by_anything[i]});
  }
  return ways;
}

Contestant refused(const std::string& name, const std::string& why) {
  return {name, [=](uint64_t bytes) { return std::vector<Figure>{not_measured(name, bytes, why)}; }};
}

/// Returns the part of the worker's sentence that rejects this way.
std::string in_short(const std::string& why) {
  constexpr std::string_view kBefore = "as --gpu-direct requires: ",
                             kAfter = "; `gradrail doctor`";  // client_device.cc, negotiate.cc
  const size_t at = why.find(kBefore);
  if (at == std::string::npos) return why;
  const size_t start = at + kBefore.size();
  return why.substr(start, why.find(kAfter, start) - start);
}

/// A refusal is asked for once, not in each round: finding out may take a second.
Contestant contestant(const std::string& name, const ExchangeLoad& load, const TransportChoice& choice) {
  if (!choice.unusable.empty()) return refused(name, choice.unusable);
  // Shared: a std::function copies its captures, and all rounds must see one value.
  const auto failed = std::make_shared<std::string>();
  return {name, [=](uint64_t bytes) -> std::vector<Figure> {
            if (!failed->empty()) return {not_measured(name, bytes, *failed)};
            Figure figure = run_exchange(with(load, choice, bytes)).figure;
            *failed = figure.failed = in_short(figure.failed);
            // A failed run never had a connection that could name its path.
            if (!figure.failed.empty()) figure.path = name;
            return {figure};
          }};
}

/// Why this way does not lead over this transport, as far as is known before it is tried.
std::string why_not(worker::GpuTransfer out, const TransportChoice& choice) {
  if (!choice.unusable.empty()) return choice.unusable;
  std::string why;
  if (out == worker::GpuTransfer::dma_buf) why = choice.gpu.why_no_dma_buf;
  if (out == worker::GpuTransfer::peer_memory) why = choice.gpu.why_no_peer_memory;
  return why.empty() ? "" : fmt::format("{} {}", choice.title(), why);
}

/// Gradients and parameters in GPU memory: each way out of it over each transport.
std::vector<Contestant> from_gpu(const ExchangeLoad& load, const std::string& gpu, const std::vector<Way>& ways) {
  std::vector<Contestant> contestants;
  const absl::Status opened = can_open(gpu);
  for (const worker::GpuTransfer out : all_gpu_transfers()) {
    const char* const way = worker::name_of(out);
    if (!opened.ok()) {
      contestants.push_back(refused(fmt::format("{} {}", gpu, way), std::string(message_of(opened))));
      continue;
    }
    ExchangeLoad device = load;
    device.gpu = gpu;
    // Each row permits one method, so that it fails where the worker would fall back to staging.
    device.gpu_transfer = out;
    // It is a GPU's kernel that reads another process' GPU memory.
    if (out == worker::GpuTransfer::ipc) device.ps_device = gpu;
    for (const auto& [transport, choice] : ways) {
      const std::string name = fmt::format("{}, {} {}", transport, gpu, way);
      const std::string why = why_not(out, choice);
      contestants.push_back(why.empty() ? contestant(name, device, choice) : refused(name, why));
    }
  }
  return contestants;
}

}  // namespace

absl::StatusOr<int> run_paths_suite(const Options& options) {
  const std::string gpu = options.on == "host" ? "gpu:0" : options.on;
  GRADRAIL_RETURN_IF_ERROR(gpu_ordinal(gpu).status());
  GRADRAIL_ASSIGN_OR_RETURN(const ExchangeLoad load, load_of(options, 1, "sync"));
  GRADRAIL_ASSIGN_OR_RETURN(const std::vector<uint64_t> list, sizes(options, "318040", "318040", sizeof(float)));
  GRADRAIL_ASSIGN_OR_RETURN(const auto ways, all_ways(options));
  Report report(options, fmt::format("gradrail bench paths: {}", describe(load)));
  report.note(
      "one exchange over each path; a row without a figure states the cause. gpu:N: gradients and parameters in GPU");
  report.note(
      "memory. ipc: kernels of the server access them; dmabuf, peermem: the network device accesses them; staged:");
  report.note("they are copied through host memory");
  report.begin(Layout::sweep);
  std::vector<Contestant> contestants;
  for (const auto& [name, choice] : ways) contestants.push_back(contestant(name, load, choice));
  for (Contestant& row : from_gpu(load, gpu, ways)) contestants.push_back(std::move(row));
  take_turns(options, list, contestants, report);
  // Failed rows are the normal case of this suite: no host has all paths.
  return report.finish(false);
}

}  // namespace gradrail::bench
