// Each pair of ranks exchanges alone: the slow host, NIC or link of a cluster.
#include <algorithm>
#include <string>
#include <vector>

#include "CLI/CLI.hpp"
#include "base/flags/number_in.h"
#include "base/status.h"
#include "bench/cluster/rank_coordinator.h"
#include "bench/cluster/rank_matrix.h"
#include "bench/driver/suite.h"
#include "bench/suites/exchange_flags.h"
#include "fmt/format.h"

namespace gradrail::bench {
namespace {

struct RankPair {
  size_t from = 0;
  size_t to = 0;
};

/// An exchange carries bytes in both directions. Without a return each direction has its own row.
std::vector<RankPair> pairs_of(size_t ranks, bool directed) {
  std::vector<RankPair> list;
  for (size_t from = 0; from < ranks; ++from) {
    for (size_t to = directed ? 0 : from + 1; to < ranks; ++to) {
      if (from != to) list.push_back({from, to});
    }
  }
  return list;
}

struct MatrixOptions : DistributedOptions {
  double slow = 1.5;

  void add_flags(CLI::App& app) {
    DistributedOptions::add_flags(app);
    remove_flags(app, {"--workers", "--mode", "--stages"});
    app.option_defaults()->group("Measurement");
    app.add_option("--slow", slow, "a pair is slow if it takes so many times the time of a typical pair")
        ->transform(NumberIn(1.0, 1000.0))
        ->capture_default_str();
  }
};

absl::StatusOr<int> run_matrix_suite(const Options& options, const MatrixOptions& own) {
  // One size is bound by latency, and one by the link.
  Options two_sizes = options;
  if (options.begin.empty() && options.end.empty()) two_sizes.factor = 1024;
  GRADRAIL_ASSIGN_OR_RETURN(const std::vector<uint64_t> list, sizes(two_sizes, "4K", "4M", sizeof(float)));
  RankCoordinator* const coordinator = options.coordinator;
  if (coordinator == nullptr) {
    return absl::InvalidArgumentError(
        "matrix: it measures pairs of ranks, and this is one process: start one per host with --cluster, srun, mpirun "
        "or torchrun");
  }
  GRADRAIL_ASSIGN_OR_RETURN(ExchangeLoad load, load_of(options, own.exchange, 0, "sync"));
  load.workers = 1;
  load.stages = false;
  // The load has one pair at a time, and its ends may be on this host.
  ExchangeLoad one_pair = load;
  one_pair.coordinator = nullptr;
  GRADRAIL_RETURN_IF_ERROR(check_memory_of_sizes(one_pair, list));
  GRADRAIL_ASSIGN_OR_RETURN(std::vector<TransportChoice> choices,
                            choose_transports(options, !options.transports.empty(), own.exchange.encrypt_data));
  // Memory joins no hosts.
  if (options.transports.empty() && !coordinator->on_one_host())
    std::erase_if(choices, [](const TransportChoice& choice) { return choice.name == "shm"; });
  const std::vector<RankPlace> places = coordinator->places();
  const std::vector<Member*> members = coordinator->members();
  const bool directed = load.ablation.no_return;
  const std::vector<RankPair> pairs = pairs_of(members.size(), directed);
  Report report(options, fmt::format("gradrail bench matrix: {} ranks, {} pairs, {}", members.size(), pairs.size(),
                                     describe(load)));
  report.note("/typical: time / median over all ranks of the time of their fastest pair");
  report.begin(Layout::sweep);
  std::vector<std::string> findings;
  for (const TransportChoice& choice : choices) {
    if (!choice.unusable.empty()) continue;
    std::vector<Contestant> contestants;
    for (const RankPair pair : pairs) {
      contestants.push_back({fmt::format("{} {}-{}", choice.title(), pair.from, pair.to),
                             [&, pair, choice](uint64_t bytes) -> std::vector<Figure> {
                               ExchangeLoad one = with(load, choice, bytes);
                               // The worker pushes: its rank is the source.
                               one.pair = {.server = members[pair.to], .worker = members[pair.from]};
                               Figure figure = run_exchange(one).figure;
                               figure.path = fmt::format("{} rank {} {} {}", figure.path, pair.from,
                                                         directed ? "to" : "and", pair.to);
                               return {figure};
                             }});
    }
    take_turns(options, list, contestants, report, [&](std::vector<Figure>& rows) {
      RankMatrix matrix(places);
      for (size_t i = 0; i < pairs.size(); ++i) {
        const double time_us = rows[i].failed.empty() ? rows[i].times.p50_us : RankMatrix::kFailed;
        matrix.set(pairs[i].from, pairs[i].to, time_us, directed);
      }
      const double typical_us = matrix.reference_us();
      for (Figure& row : rows) {
        if (row.failed.empty()) row.more = {{"/typical", row.times.p50_us / typical_us}};
      }
      report.note(fmt::format("{}, {} B: us of each pair", choice.title(), rows.front().bytes));
      for (const std::string& line : matrix.lines()) report.note(line);
      for (const std::string& part : matrix.slow_parts(own.slow))
        findings.push_back(fmt::format("{} at {} B: {}", choice.title(), rows.front().bytes, part));
      if (!matrix.is_comparable()) report.note("two ranks: no other pair to compare with");
    });
  }
  const int code = report.finish(true);
  for (const std::string& finding : findings) fmt::print(stderr, "gradrail bench: slow: {}\n", finding);
  return code == 0 && !findings.empty() ? 1 : code;
}

}  // namespace

std::unique_ptr<Suite> new_matrix_suite() { return std::make_unique<SuiteWith<MatrixOptions>>(run_matrix_suite); }

}  // namespace gradrail::bench
