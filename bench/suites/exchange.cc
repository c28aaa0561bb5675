// The whole step as training does it: gradients to the server, the update, fresh parameters back.
#include "base/status.h"
#include "bench/driver/rounds.h"
#include "bench/driver/suite.h"
#include "bench/driver/transports.h"
#include "bench/suites/exchange_flags.h"
#include "bench/suites/exchange_run.h"
#include "fmt/format.h"

namespace gradrail::bench {

absl::StatusOr<int> run_exchange_suite(const Options& options) {
  GRADRAIL_ASSIGN_OR_RETURN(const ExchangeLoad load, load_of(options, 1, "sync"));
  GRADRAIL_ASSIGN_OR_RETURN(const std::vector<uint64_t> list, sizes(options, "4K", "64M", sizeof(float)));
  GRADRAIL_ASSIGN_OR_RETURN(const std::vector<TransportChoice> choices,
                            choose_transports(options, !options.transports.empty()));
  Report report(options, fmt::format("gradrail bench exchange: {}", describe(load)));
  report.note("time: median from the push to the last fresh parameter; 99%: percentile of the slowest worker");
  report.note("algbw: gradient bytes / time. busbw: gradient and parameters, 2 x algbw");
  add_ranks(load, choices, report);
  report.begin(Layout::sweep);
  take_turns(options, list, exchange_contestants(load, choices), report);
  return report.finish(!options.transports.empty());
}

}  // namespace gradrail::bench
