// One command, every path: the same exchange over each way that this host has, and why not over the others.
#include "bench/exchange_flags.h"
#include "bench/question.h"
#include "fmt/format.h"

namespace gradrail::bench {
namespace {

/// Each transport; those that run over devices and over sockets as two.
absl::StatusOr<std::vector<std::pair<std::string, TransportChoice>>> all_ways(const Options& options) {
  std::vector<std::pair<std::string, TransportChoice>> ways;
  const absl::StatusOr<std::vector<TransportChoice>> by_device = choose_transports(options, false);
  if (!by_device.ok()) return by_device.status();
  const absl::StatusOr<std::vector<TransportChoice>> by_anything = choose_transports(options, true);
  if (!by_anything.ok()) return by_anything.status();
  for (size_t i = 0; i < by_device->size(); ++i) {
    const TransportChoice& device = (*by_device)[i];
    if (device.rdma_only) ways.emplace_back(device.name + " by an RDMA device", device);
    // Where a device carries it, the transport takes that device: there is no second way to measure.
    if (device.rdma_only && device.unusable.empty()) continue;
    ways.emplace_back(device.rdma_only ? device.name + " without one" : device.name, (*by_anything)[i]);
  }
  return ways;
}

}  // namespace

absl::StatusOr<int> ask_paths(const Options& options) {
  const absl::StatusOr<ExchangeLoad> load = load_of(options, 1, "sync");
  if (!load.ok()) return load.status();
  const absl::StatusOr<std::vector<uint64_t>> list = sizes(options, "318040", "318040", sizeof(float));
  if (!list.ok()) return list.status();
  const auto ways = all_ways(options);
  if (!ways.ok()) return ways.status();
  Report report(options, fmt::format("gradrail bench paths: {}", describe(*load)));
  report.note("the same exchange over every path from host memory; rows that cannot run say why");
  report.begin(Layout::sweep);
  std::vector<Contestant> contestants;
  for (const auto& [name, choice] : *ways) {
    contestants.push_back({name, [&load, name = name, choice = choice](uint64_t bytes) -> std::vector<Figure> {
                             if (!choice.unusable.empty()) return {not_measured(name, bytes, choice.unusable)};
                             Figure figure = run_exchange(with(*load, choice, bytes)).figure;
                             if (!figure.failed.empty()) figure.path = name;
                             return {figure};
                           }});
  }
  take_turns(options, *list, contestants, report);
  return report.finish(false);
}

}  // namespace gradrail::bench
