// The whole step as training does it: gradients to the server, the update, fresh parameters back. With --on gpu:N from
// the memory of a GPU, over each way out of it.
#include "base/status.h"
#include "bench/driver/rounds.h"
#include "bench/driver/suite.h"
#include "bench/driver/transports.h"
#include "bench/suites/device_name.h"
#include "bench/suites/exchange_flags.h"
#include "bench/suites/exchange_run.h"
#include "bench/suites/exchange_ways.h"
#include "fmt/format.h"

namespace gradrail::bench {
namespace {

struct ExchangeSuiteOptions : DistributedOptions {
  std::string on = "host";

  ExchangeSuiteOptions() { exchange.stages = true; }
  void add_flags(CLI::App& app) {
    DistributedOptions::add_flags(app);
    add_on_flag(app, on, "host, or gpu:N", true);
  }
};

absl::StatusOr<int> run_exchange_suite(const Options& options, const ExchangeSuiteOptions& own) {
  GRADRAIL_ASSIGN_OR_RETURN(const ExchangeLoad load, load_of(options, own.exchange, 1, "sync"));
  GRADRAIL_ASSIGN_OR_RETURN(const std::vector<uint64_t> list, sizes(options, "4K", "64M", sizeof(float)));
  GRADRAIL_ASSIGN_OR_RETURN(const std::vector<TransportChoice> choices,
                            choose_transports(options, !options.transports.empty(), own.exchange.encrypt_data));
  const bool on_gpu = own.on != "host";
  if (!on_gpu) GRADRAIL_RETURN_IF_ERROR(check_memory_of_sizes(load, list));
  if (on_gpu) GRADRAIL_RETURN_IF_ERROR(can_open(own.on));
  Report report(options, fmt::format("gradrail bench exchange: {}", describe(load)));
  report.note("time: median from the push to the last fresh parameter; 99%: percentile of the slowest worker");
  report.note("algbw: gradient bytes / time. busbw: gradient and parameters, 2 x algbw");
  std::vector<Contestant> contestants;
  if (!on_gpu) {
    contestants = exchange_contestants(load, choices);
  } else {
    GRADRAIL_ASSIGN_OR_RETURN(const std::vector<Way> ways, all_ways(options, own.exchange.encrypt_data));
    contestants = gpu_contestants(load, own.on, absl::OkStatus(), ways);
    report.note(
        "ipc: kernels of a server on the same GPU access the memory of the worker; dmabuf, peermem: the network");
    report.note("device accesses it; staged: copied through host memory");
  }
  add_ranks(load, choices, report);
  report.begin(Layout::sweep);
  take_turns(options, list, contestants, report);
  // No host has all ways out of GPU memory: there, rows without a figure are normal.
  return report.finish(!on_gpu && !options.transports.empty());
}

}  // namespace

std::unique_ptr<Suite> new_exchange_suite() {
  return std::make_unique<SuiteWith<ExchangeSuiteOptions>>(run_exchange_suite);
}

}  // namespace gradrail::bench
