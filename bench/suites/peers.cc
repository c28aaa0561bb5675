// The alternatives to gradrail do the same in the same run. Exchanges: gradient to another process, SGD,
// parameters back, one worker. Puts: over ucx and ofi, beside what these libraries' own programs reach.
#include "bench/peers/peers.h"

#include "CLI/CLI.hpp"
#include "base/status.h"
#include "bench/driver/suite.h"
#include "bench/peers/puts.h"
#include "bench/report/isolated_figures.h"
#include "bench/suites/exchange_flags.h"

namespace gradrail::bench {
namespace {

constexpr const char* kOurs = "gradrail ";

std::vector<Figure> run_isolated(const Peer& peer, const PeerLoad& load) {
  // mpirun needs seconds to start its ranks; ZeroMQ and Gloo report their own timeout. A few exchanges warm up.
  constexpr int kMostOfShortRun = 11;
  const Duration beside_time = exchange_limit(load.bytes) - exchange_limit(0);
  const Duration timeout =
      std::chrono::seconds(30 + static_cast<int64_t>(8 * load.seconds)) + kMostOfShortRun * beside_time;
  Figure figure =
      isolated_figures(peer.name, load.bytes, timeout, [&] { return std::vector<Figure>{peer.run(load)}; }).front();
  figure.path = peer.name;
  figure.bytes = load.bytes;
  figure.count = load.bytes / sizeof(float);
  figure.alg_bytes = static_cast<double>(load.bytes);
  figure.bus_bytes = 2.0 * static_cast<double>(load.bytes);
  return {figure};
}

double time_of(const std::vector<Figure>& rows, const std::string& path) {
  for (const Figure& row : rows)
    if (row.path == path) return row.times.p50_us;
  return 0.0;
}

/// Sets the ratios of each time to the time of one fused apply and to the time of gradrail.
void add_ratios(std::vector<Figure>& rows) {
  // The rows of one size: the bound and ours were measured in the same rounds.
  const double bound = time_of(rows, kApplyBound);
  std::vector<std::pair<std::string, double>> ours;
  for (const Figure& row : rows)
    if (row.path.starts_with(kOurs) && row.failed.empty())
      ours.emplace_back("/" + row.path.substr(std::string(kOurs).size()), row.times.p50_us);
  for (Figure& row : rows) {
    if (!row.failed.empty() || row.times.p50_us <= 0) continue;
    row.more.clear();
    if (bound > 0) row.more.emplace_back("/bound", row.times.p50_us / bound);
    if (row.path.starts_with(kOurs) || row.path.starts_with("bound: memcpy") || row.path == kApplyBound) continue;
    for (const auto& [name, micros] : ours) row.more.emplace_back(name, row.times.p50_us / micros);
  }
}

struct PeersOptions {
  ExchangeOptions exchange;
  std::string part;  ///< "exchange" or "put"; "": both
  PutPlacement placement;

  void add_flags(CLI::App& app) {
    exchange.add_flags(app);
    app.option_defaults()->group("Measurement");
    app.add_option("--part", part, "exchange or put; default: both")->check(CLI::IsMember({"exchange", "put"}));
    app.add_flag("--pin", placement.pin, "puts: servers on core 0, clients on core 1");
    app.add_flag("--realtime", placement.realtime, "puts: run with real-time priority; needs CAP_SYS_NICE");
  }
};

/// The checked flags. Sizes are checked before the first run.
struct Asked {
  Options options;
  ExchangeLoad load;
  std::vector<uint64_t> exchanges, puts;
  std::vector<TransportChoice> choices;
};

absl::StatusOr<Asked> understand(const Options& options, const PeersOptions& own_options) {
  Asked asked{.options = options};
  const ExchangeOptions& exchange = own_options.exchange;
  if (own_options.part == "put" && exchange.encrypt_data)
    return absl::InvalidArgumentError("--part put --encrypt-data: puts are measured in plain; omit one of the flags");
  if (own_options.part != "put") {
    Options& own = asked.options;
    // The peers have these two carriers. ucx and ofi are compared with their own libraries below.
    if (own.transports.empty()) own.transports = {"shm", "tcp"};
    GRADRAIL_ASSIGN_OR_RETURN(const ExchangeLoad load, load_of(own, exchange, 1, "sync"));
    asked.load = load;
    if (load.ablation.any())
      return absl::InvalidArgumentError("peers: all of them sum, update and return; leave --no-... out");
    if (load.workers != 1 || load.optimizer != OptimizerKind::sgd)
      return absl::InvalidArgumentError(
          "peers: all of them do SGD with one worker; leave --workers and --optimizer out");
    GRADRAIL_ASSIGN_OR_RETURN(const std::vector<uint64_t> list, sizes(own, "64", "64M", sizeof(float)));
    asked.exchanges = list;
    GRADRAIL_RETURN_IF_ERROR(check_memory_of_sizes(load, list));
    GRADRAIL_ASSIGN_OR_RETURN(asked.choices, choose_transports(own, true, exchange.encrypt_data));
  }
  // The unit is 8: the smallest put that the loops can verify.
  if (own_options.part != "exchange") {
    GRADRAIL_ASSIGN_OR_RETURN(asked.puts, sizes(options, "8", "4M", 8));
  }
  return asked;
}

void compare_exchanges(const Asked& asked, Report& report) {
  report.note("exchanges: " + describe(asked.load));
  report.note(
      "/bound: time / time of one fused apply. /shm, /tcp: time / time of gradrail; above 1 gradrail is faster");
  report.begin(Layout::sweep);
  std::vector<Contestant> contestants;
  const auto add = [&](const std::vector<Peer>& peers) {
    for (const Peer& peer : peers) {
      contestants.push_back({peer.name, [&asked, peer](uint64_t bytes) {
                               return run_isolated(
                                   peer, {.bytes = bytes, .seconds = asked.options.seconds, .touch = asked.load.touch});
                             }});
    }
  };
  add(bounds());
  add({round_trip_bound()});
  for (Contestant& ours : exchange_contestants(asked.load, asked.choices)) {
    contestants.push_back({ours.name, [ours](uint64_t bytes) {
                             std::vector<Figure> rows = ours.measure(bytes);
                             rows.front().path = kOurs + ours.name;
                             return rows;
                           }});
  }
  add(peers());
  take_turns(asked.options, asked.exchanges, contestants, report, add_ratios);
}

void compare_puts(const Asked& asked, const Options& options, const PutPlacement& placement, Report& report) {
  const absl::StatusOr<std::vector<PutContender>> contenders = put_contenders(options);
  report.note(
      "puts: gradrail and the library that it uses. ours/it: time of gradrail / time of the library, by medians");
  report.note("or by means if it reports no median; below 1 gradrail is faster");
  if (!contenders.ok()) {
    report.begin(Layout::sweep);
    report.add(not_measured("puts", asked.puts.front(), std::string(message_of(contenders.status()))));
    return;
  }
  for (const char* what : {"latency", "bandwidth"}) {
    report.note(std::string(what) == "latency" ? "latency of puts: half of a round trip"
                                               : "bandwidth of puts: time of one");
    report.begin(Layout::sweep);
    take_turns(options, asked.puts, put_contestants(*contenders, options, placement, what), report,
               [&](std::vector<Figure>& rows) { add_put_ratios(*contenders, rows); });
  }
}

absl::StatusOr<int> run_peers_suite(const Options& options, const PeersOptions& own) {
  GRADRAIL_ASSIGN_OR_RETURN(const Asked asked, understand(options, own));
  Report report(options, "gradrail bench peers: gradrail and other libraries in turn");
  if (!asked.exchanges.empty()) compare_exchanges(asked, report);
  if (!asked.puts.empty()) compare_puts(asked, options, own.placement, report);
  return report.finish(false);
}

}  // namespace

std::unique_ptr<Suite> new_peers_suite() { return std::make_unique<SuiteWith<PeersOptions>>(run_peers_suite); }

}  // namespace gradrail::bench
