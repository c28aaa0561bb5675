// A model's backward pass replayed against the real server. Layer after layer becomes ready, and what the exchange adds
// to the step is what it does not hide. Or the bytes of a traffic matrix.
#include <algorithm>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "CLI/CLI.hpp"
#include "base/flags/number_in.h"
#include "base/status.h"
#include "bench/cluster/rank_coordinator.h"
#include "bench/driver/suite.h"
#include "bench/layers/traffic_matrix.h"
#include "bench/suites/exchange_flags.h"
#include "bench/suites/layer_list.h"
#include "fmt/format.h"

namespace gradrail::bench {
namespace {

uint64_t sum_of(const std::vector<uint64_t>& row) { return std::accumulate(row.begin(), row.end(), uint64_t{0}); }

uint64_t sum_of(const TrafficMatrix& matrix) {
  return std::accumulate(matrix.begin(), matrix.end(), uint64_t{0},
                         [](uint64_t sum, const std::vector<uint64_t>& row) { return sum + sum_of(row); });
}

/// The task with the most bytes in a step, in each direction.
struct BusiestTask {
  std::string name;
  uint64_t bytes = 0;
  void offer(const std::string& task, uint64_t sum) {
    if (sum > bytes) *this = {task, sum};
  }
};

BusiestTask busiest_of(const TrafficMatrix& matrix, uint32_t shards_of_server) {
  BusiestTask busiest;
  std::vector<uint64_t> servers(matrix.front().size() / shards_of_server);
  for (size_t worker = 0; worker < matrix.size(); ++worker) {
    busiest.offer(fmt::format("worker/{}", worker), sum_of(matrix[worker]));
    for (size_t shard = 0; shard < matrix[worker].size(); ++shard)
      servers[shard / shards_of_server] += matrix[worker][shard];
  }
  for (size_t i = 0; i < servers.size(); ++i) busiest.offer(fmt::format("ps/{}", i), servers[i]);
  return busiest;
}

struct ReplayOptions : DistributedOptions {
  std::string file;      ///< "" with a matrix
  std::string matrix;    ///< file of a traffic matrix; "": none
  double line_gbit = 0;  ///< rate of a link of a matrix in each direction; 0: not given

  void add_flags(CLI::App& app) {
    remove_flags(app, {"-b", "-e", "-f"});
    app.add_option("file", file, "a layer list, or the name of a built-in list; gradrail-report converts traces");
    CLI::Option* const matrix_flag =
        app.add_option("--matrix", matrix,
                       "in the place of a list: a file with the bytes of each worker (row) to each shard (column)");
    app.add_option("--line_gbit,--line-gbit", line_gbit,
                   "--matrix: rate of a link in each direction in Gbit/s, for the column of_line")
        ->transform(NumberIn(1e-3, 1e5))
        ->needs(matrix_flag);
    DistributedOptions::add_flags(app);
  }
};

/// The matrix decides the numbers of workers and shards. Over several processes they must agree with the ranks.
absl::StatusOr<ExchangeOptions> exchange_of(const RankCoordinator* coordinator, const ReplayOptions& given,
                                            const TrafficMatrix& matrix) {
  const ExchangeOptions& own = given.exchange;
  const auto refuse = [&](const std::string& why) {
    return absl::InvalidArgumentError(fmt::format("--matrix {}: {}", given.matrix, why));
  };
  if (own.stages) return refuse("--stages has no effect; omit it");
  if (!own.mode.empty() && own.mode != "async")
    return refuse(
        fmt::format("--mode {}: a worker can send nothing to a shard, and only async does not wait for it", own.mode));
  if (given.line_gbit > 0 && (own.push != "fp32" || own.returns != "fp32"))
    return refuse(
        fmt::format("--line_gbit needs --push fp32 and --return fp32, not {} and {}: entries are bytes of fp32",
                    own.push, own.returns));
  if (own.push.starts_with("topk"))
    return refuse(fmt::format("--push {}: its chunks are larger than the units of a matrix", own.push));
  const auto rows = static_cast<uint32_t>(matrix.size()), columns = static_cast<uint32_t>(matrix.front().size());
  ExchangeOptions chosen = own;
  if (coordinator == nullptr) {
    if (own.workers != 0 && own.workers != rows)
      return refuse(fmt::format("{} rows, and --workers {}; omit the flag", rows, own.workers));
    if (own.shards != 1 && own.shards != columns)
      return refuse(fmt::format("{} columns, and --shards {}; omit the flag", columns, own.shards));
    if (columns > kMaxShards)
      return refuse(
          fmt::format("{} columns, and a server has at most {} shards; start several servers (--cluster, srun)",
                      columns, kMaxShards));
    chosen.workers = rows;
    chosen.shards = columns;
    return chosen;
  }
  const size_t workers = coordinator->workers().size(), servers = coordinator->servers().size();
  if (rows != workers) return refuse(fmt::format("{} rows, and there are {} ranks for workers", rows, workers));
  if (columns != servers * own.shards)
    return refuse(
        fmt::format("{} columns, and there are {} servers of {} shards (--shards)", columns, servers, own.shards));
  return chosen;
}

/// A row for the step, which ends with its slowest worker, then one for each worker.
std::vector<Figure> rows_of_matrix(const ExchangeResult& result, const TrafficMatrix& matrix,
                                   const BusiestTask& busiest, double line_gbit) {
  const auto with_bytes = [&](uint64_t bytes) {
    Figure figure = result.figure;
    figure.bytes = bytes;
    figure.count = bytes / sizeof(float);
    figure.alg_bytes = static_cast<double>(bytes);
    figure.bus_bytes = figure.alg_bytes * result.figure.bus_bytes / result.figure.alg_bytes;
    return figure;
  };
  std::vector<Figure> rows = {with_bytes(sum_of(matrix))};
  if (!result.figure.failed.empty()) return rows;
  for (size_t i = 0; i < result.workers.size(); ++i) {
    Figure one = with_bytes(sum_of(matrix[i]));
    one.path = fmt::format("{} worker/{}", result.figure.path, i);
    one.times = result.workers[i];
    one.wrong = 0;  // counted in the row of the step
    rows.push_back(std::move(one));
  }
  Figure& step = rows.front();
  step.times = *std::max_element(result.workers.begin(), result.workers.end(),
                                 [](const Times& a, const Times& b) { return a.p50_us < b.p50_us; });
  const double rate = step.times.p50_us > 0 ? static_cast<double>(busiest.bytes) / step.times.p50_us * 1e-3 : 0.0;
  step.more = {{"busiest_GB/s", rate}};
  if (line_gbit > 0) step.more.emplace_back("of_line", rate * 8 / line_gbit);
  return rows;
}

absl::StatusOr<int> run_matrix_replay(const Options& options, const ReplayOptions& own) {
  const absl::StatusOr<TrafficMatrix> matrix = read_traffic_matrix(own.matrix);
  if (!matrix.ok())
    return absl::Status(matrix.status().code(), fmt::format("--matrix {}", message_of(matrix.status())));
  GRADRAIL_ASSIGN_OR_RETURN(const ExchangeOptions exchange, exchange_of(options.coordinator, own, *matrix));
  GRADRAIL_ASSIGN_OR_RETURN(ExchangeLoad load, load_of(options, exchange, exchange.workers, "async"));
  GRADRAIL_ASSIGN_OR_RETURN(const std::vector<TransportChoice> choices,
                            choose_transports(options, !options.transports.empty(), own.exchange.encrypt_data));
  load.traffic = *matrix;
  for (const TrafficPiece& piece : pieces_of(*matrix)) load.bytes += piece.bytes;
  GRADRAIL_RETURN_IF_ERROR(
      check_memory(load, "give smaller entries (each column of a worker takes the largest entry)"));
  const BusiestTask busiest = busiest_of(*matrix, exchange.shards);
  const uint64_t total = sum_of(*matrix);
  Report report(options, fmt::format("gradrail bench replay --matrix {}: {}", own.matrix, describe(load)));
  report.note(
      fmt::format("{} bytes of fp32 in a step and direction; busiest: {} with {}", total, busiest.name, busiest.bytes));
  report.note("time: one step of all entries; a worker: until its last fresh parameter. Workers begin a step together");
  report.note("busiest_GB/s: bytes of the busiest task in each direction, as fp32 / time of the step");
  add_ranks(load, choices, report);
  report.begin(Layout::sweep);
  const auto measure = [&](const TransportChoice& choice, uint64_t) {
    return rows_of_matrix(run_exchange(with(load, choice, load.bytes)), *matrix, busiest, own.line_gbit);
  };
  take_turns(options, {total}, exchange_contestants(choices, measure), report);
  return report.finish(!options.transports.empty());
}

absl::StatusOr<int> run_replay_suite(const Options& options, const ReplayOptions& own) {
  if (own.file.empty() && own.matrix.empty())
    return absl::InvalidArgumentError("replay: give a layer list, the name of a built-in list, or --matrix FILE");
  if (!own.file.empty() && !own.matrix.empty())
    return absl::InvalidArgumentError(fmt::format("replay {} --matrix {}: give one of them", own.file, own.matrix));
  if (!own.matrix.empty()) return run_matrix_replay(options, own);
  GRADRAIL_ASSIGN_OR_RETURN(const LayerList list, read_layer_list(own.file));
  GRADRAIL_ASSIGN_OR_RETURN(ExchangeLoad load, load_of(options, own.exchange, 1, "sync"));
  // The size of the run follows from the list: the flags -b and -e have no effect here.
  load.layers = list.layers;
  load.bytes = list.bytes();
  GRADRAIL_RETURN_IF_ERROR(check_memory(load, "give fewer or smaller layers"));
  GRADRAIL_ASSIGN_OR_RETURN(const std::vector<TransportChoice> choices,
                            choose_transports(options, !options.transports.empty(), own.exchange.encrypt_data));
  const double backward_us = list.layers.back().ready_us;
  Report report(options, fmt::format("gradrail bench replay {}: {}", list.name, describe(load)));
  report.note(
      fmt::format("{} layers, {} bytes, backward pass {:.0f} us", list.layers.size(), list.bytes(), backward_us));
  report.note("time: one step, until the last fresh parameter. exposed_us: part of it after the backward pass");
  add_ranks(load, choices, report);
  report.begin(Layout::sweep);
  const auto measure = [&](const TransportChoice& choice, uint64_t bytes) -> std::vector<Figure> {
    Figure figure = run_exchange(with(load, choice, bytes)).figure;
    // The backward pass has an exact length here: the rest of the step is due to the exchange.
    figure.more = {{"exposed_us", figure.times.p50_us - backward_us}};
    return {figure};
  };
  take_turns(options, {list.bytes()}, exchange_contestants(choices, measure), report);
  return report.finish(!options.transports.empty());
}

}  // namespace

std::unique_ptr<Suite> new_replay_suite() { return std::make_unique<SuiteWith<ReplayOptions>>(run_replay_suite); }

}  // namespace gradrail::bench
