// This suite measures one-sided puts between two processes: latency as a ping-pong, bandwidth in windows.
#include <unistd.h>

#include "CLI/CLI.hpp"
#include "base/flags/number_in.h"
#include "base/resource_limits.h"
#include "base/status.h"
#include "bench/driver/rounds.h"
#include "bench/driver/suite.h"
#include "bench/driver/transports.h"
#include "bench/put/pair.h"
#include "bench/put/transport.h"
#include "bench/report/isolated_figures.h"
#include "fmt/format.h"

namespace gradrail::bench {
namespace {

struct PutOptions {
  uint32_t window = 32;
  bool bidirectional = false;

  void add_flags(CLI::App& app) {
    app.option_defaults()->group("Measurement");
    app.add_option("--window", window, "bandwidth: maximum number of puts between two notices")
        ->transform(NumberIn(2u, 64u))
        ->capture_default_str();
    app.add_flag("--bidirectional", bidirectional,
                 "bandwidth: both ends put at the same time; algbw is the sum of both directions");
  }
};

absl::StatusOr<std::vector<Figure>> lead(PutPair& pair, const std::string& path, const Options& options,
                                         const PutOptions& own, uint64_t bytes, const std::string& what,
                                         Patience& patience) {
  PutLoad load{.bytes = bytes,
               .window = what == "bandwidth" ? PutPair::window_of(own.window, bytes) : 1,
               .seconds = options.seconds,
               .iterations = options.iterations,
               .warmup = options.warmup,
               .patience = &patience};
  const bool both_ways = own.bidirectional && what == "bandwidth";
  GRADRAIL_ASSIGN_OR_RETURN(const PutFigure measured, pair.lead(both_ways ? "both_ways" : what, load));
  // The other process ends in order: it may have files to remove.
  GRADRAIL_RETURN_IF_ERROR(pair.end());
  Figure figure;
  figure.path = path;
  figure.what = what;
  figure.bytes = bytes;
  figure.count = bytes;
  figure.type = "byte";
  figure.times = measured.times;
  // The time of bandwidth is that of a whole window; both ways, that from one window of either direction to the next.
  figure.alg_bytes = figure.bus_bytes = static_cast<double>(bytes) * load.window;
  figure.wrong = options.check ? measured.wrong : 0;
  if (what == "bandwidth") figure.more = {{"window", load.window}};
  return std::vector<Figure>{figure};
}

/// Runs both processes of one figure: the other one answers and ends.
absl::StatusOr<std::vector<Figure>> measure_puts(const TransportChoice& choice, const Options& options,
                                                 const PutOptions& own, uint64_t bytes, const std::string& what,
                                                 Patience& patience) {
  GRADRAIL_ASSIGN_OR_RETURN(PairLink link, PairLink::fork_two());
  // The opening follows the fork: devices and threads of a transport do not survive one.
  absl::StatusOr<std::unique_ptr<PutEnd>> end = open_transport_end({.name = choice.name,
                                                                    .rdma_only = choice.rdma_only,
                                                                    .ofi_provider = choice.ofi_provider,
                                                                    .bind_host = options.bind_host},
                                                                   link, bytes);
  if (!link.leads()) {
    if (end.ok()) PutPair(link, **end).answer().IgnoreError();  // the leader reports it
    if (end.ok()) end->reset();                                 // libraries have files to remove
    // _exit(): the child has copies of the output buffers and exit handlers of its parent.
    _exit(0);
  }
  if (!end.ok()) return end.status();
  PutPair pair(link, **end);
  return lead(pair, (*end)->path(), options, own, bytes, what, patience);
}

std::vector<Figure> measure_isolated(const TransportChoice& choice, const Options& options, const PutOptions& own,
                                     uint64_t bytes, const std::string& what) {
  if (!choice.unusable.empty()) return {not_measured(choice.name, bytes, choice.unusable)};
  const Duration whole = timeout_for(options.seconds);
  // Two windows under way, in both directions.
  const double turn_bytes = 4.0 * static_cast<double>(bytes) * PutPair::window_of(own.window, bytes);
  const Duration first_turn = choice.name == "shm" ? whole : whole + link_time(turn_bytes);
  return isolated_figures(
      choice.name, bytes, {.whole = whole, .first_turn = first_turn, .pause = whole},
      [&](Patience& patience) { return measure_puts(choice, options, own, bytes, what, patience); });
}

absl::StatusOr<int> run_put_suite(const Options& options, const PutOptions& own) {
  GRADRAIL_ASSIGN_OR_RETURN(const std::vector<uint64_t> list, sizes(options, "8", "4M", 8));
  // Two processes with sources and targets.
  constexpr double kCopies = 4 * PutEnd::kSlots;
  GRADRAIL_RETURN_IF_ERROR(check_available_memory(fmt::format("puts of {} bytes: two processes need", list.back()),
                                                  kCopies * static_cast<double>(list.back()),
                                                  "give a smaller size (-b, -e)", 2));
  GRADRAIL_ASSIGN_OR_RETURN(const std::vector<TransportChoice> choices,
                            choose_transports(options, !options.transports.empty()));
  Report report(options, "gradrail bench put: one process writes into the memory of another process and notifies it");
  report.note("latency: half of a round trip of puts with a notice; each arrival is checked");
  report.note(fmt::format(
      "bandwidth: time of a window of up to {} puts, the last with a notice that is answered; two under way",
      own.window));
  if (own.bidirectional)
    report.note("bidirectional: both processes write at the same time; algbw is the sum of both directions");
  for (const char* what : {"latency", "bandwidth"}) {
    report.begin(std::string(what) == "latency" ? Layout::latency : Layout::sweep);
    std::vector<Contestant> contestants;
    for (const TransportChoice& choice : choices) {
      contestants.push_back(
          {choice.name, [&, what](uint64_t bytes) { return measure_isolated(choice, options, own, bytes, what); }});
    }
    take_turns(options, list, contestants, report);
  }
  return report.finish(!options.transports.empty());
}

}  // namespace

std::unique_ptr<Suite> new_put_suite() { return std::make_unique<SuiteWith<PutOptions>>(run_put_suite); }

}  // namespace gradrail::bench
