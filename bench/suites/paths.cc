// This suite covers every path in one command. It runs the same exchange over each way of this host, from host memory
// and from a GPU's, with the reasons against the others.
#include "base/status.h"
#include "bench/driver/suite.h"
#include "bench/suites/device_name.h"
#include "bench/suites/exchange_flags.h"
#include "bench/suites/exchange_ways.h"
#include "fmt/format.h"

namespace gradrail::bench {
namespace {

struct PathsOptions : DistributedOptions {
  std::string on;  ///< "": GPU 0, if there is one

  void add_flags(CLI::App& app) {
    DistributedOptions::add_flags(app);
    add_on_flag(app, on, "GPU of the rows in GPU memory, gpu:N; default: gpu:0, if it can be used", false);
  }
};

absl::StatusOr<int> run_paths_suite(const Options& options, const PathsOptions& own) {
  GRADRAIL_ASSIGN_OR_RETURN(const ExchangeLoad load, load_of(options, own.exchange, 1, "sync"));
  GRADRAIL_ASSIGN_OR_RETURN(const std::vector<uint64_t> list, sizes(options, "318040", "318040", sizeof(float)));
  GRADRAIL_RETURN_IF_ERROR(check_memory_of_sizes(load, list));
  GRADRAIL_ASSIGN_OR_RETURN(const auto ways, all_ways(options, own.exchange.encrypt_data));
  const std::string on = own.on.empty() ? "gpu:0" : own.on;
  const absl::Status opened = can_open(on);
  if (!own.on.empty()) GRADRAIL_RETURN_IF_ERROR(opened);
  Report report(options, fmt::format("gradrail bench paths: {}", describe(load)));
  report.note(
      "one exchange over each path; a row without a figure states the cause. gpu:N: gradients and parameters in GPU");
  report.note(
      "memory. ipc: kernels of the server access them; dmabuf, peermem: the network device accesses them; staged:");
  report.note("they are copied through host memory");
  report.begin(Layout::sweep);
  std::vector<Contestant> contestants;
  for (const auto& [name, choice] : ways) contestants.push_back(way_contestant(name, load, choice));
  for (Contestant& row : gpu_contestants(load, on, opened, ways)) contestants.push_back(std::move(row));
  take_turns(options, list, contestants, report);
  // Failed rows are the normal case of this suite: no host has all paths.
  return report.finish(false);
}

}  // namespace

std::unique_ptr<Suite> new_paths_suite() { return std::make_unique<SuiteWith<PathsOptions>>(run_paths_suite); }

}  // namespace gradrail::bench
