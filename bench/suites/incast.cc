// N workers at one shard: what each of them gets, and how evenly.
#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "base/status.h"
#include "bench/driver/harness.h"
#include "bench/driver/suite.h"
#include "bench/peers/many_sockets.h"
#include "bench/suites/exchange_flags.h"
#include "fmt/format.h"
#include "ps/optimizer/optimizer.h"

namespace gradrail::bench {
namespace {

/// Size beyond the caches: the memory of more workers does not change the time.
constexpr uint64_t kMostBytesOfBound = uint64_t{1} << 29;

/// The load is the one of cold_us().
bool has_cold_bound(const ExchangeLoad& load) {
  return load.mode.kind == ModeKind::async && load.optimizer == OptimizerKind::sgd && load.push == PushFormat::fp32 &&
         load.returns == ReturnFormat::fp32 && load.layers.empty() && !load.encrypted && !load.ablation.any();
}

uint32_t workers_of_bound(const ExchangeLoad& load) {
  return static_cast<uint32_t>(std::clamp<uint64_t>(kMostBytesOfBound / load.bytes, 1, load.workers));
}

/// The time of an update alone in mapped memory. Each one reads the gradient of another worker, and stores the
/// parameters into its memory. The memory of many workers does not fit into the caches. A shard can be faster: a
/// worker that exchanges several times in a row stays in them.
double cold_update_us(const ExchangeLoad& load) {
  const size_t count = load.bytes / sizeof(float);
  const size_t workers = workers_of_bound(load);
  std::vector<float> parameters(count, 0.0f), gradients(count * workers, 1.0f), targets(count * workers, 0.0f);
  size_t updates = 0;
  const auto update = [&] {
    const size_t first = updates % workers * count;
    const float* gradient[] = {&gradients[first]};
    float* target[] = {&targets[first]};
    ps::apply({.kind = load.optimizer, .learning_rate = 1.0f}, {.count = count,
                                                                .parameters = parameters.data(),
                                                                .gradients = gradient,
                                                                .targets = target,
                                                                .update_index = ++updates});
  };
  return measure(
             load.seconds, [] {}, update)
      .mean_us;
}

/// The time that the memory (shm) or the sockets (tcp) of the workers cost alone. nullopt: not known for this load.
std::optional<double> cold_us(const ExchangeLoad& load) {
  if (!has_cold_bound(load)) return std::nullopt;
  if (load.transport == "shm") return cold_update_us(load);
  // Ranks have threads, and a process that is forked beside threads must not allocate.
  if (load.transport == "tcp" && load.coordinator == nullptr)
    return echo_us(load.bytes, workers_of_bound(load), load.seconds);
  return std::nullopt;
}

/// A row for all workers, then one for each.
std::vector<Figure> rows_of(const ExchangeLoad& load) {
  const ExchangeResult result = run_exchange(load);
  std::vector<Figure> rows = {result.figure};
  if (!result.figure.failed.empty()) return rows;
  double fastest = result.workers.front().p50_us, slowest = fastest, exchanges = 0.0;
  for (size_t i = 0; i < result.workers.size(); ++i) {
    const Times& times = result.workers[i];
    // Medians: the ratio states how evenly the shard serves its workers, not how the machine behaves at times.
    fastest = std::min(fastest, times.p50_us);
    slowest = std::max(slowest, times.p50_us);
    exchanges += static_cast<double>(times.count);
    Figure one = result.figure;
    one.path = fmt::format("{} worker/{}", result.figure.path, i);
    one.times = times;
    one.stages.clear();  // the stages are those of all workers
    one.wrong = 0;       // counted in the row of all
    rows.push_back(std::move(one));
  }
  // The numbers of the workers differ in `async`, so that each worker's own count is added.
  const double bytes = exchanges * static_cast<double>(result.figure.bytes);
  rows.front().more = {{"slowest/fastest", fastest > 0 ? slowest / fastest : 0.0},
                       {"aggregate_GB/s", result.seconds > 0 ? bytes / result.seconds * 1e-9 : 0.0},
                       {"join_s", result.join_seconds}};
  for (const auto& one : result.shard) rows.front().more.push_back(one);
  if (const std::optional<double> alone_us = cold_us(load)) rows.front().more.emplace_back("cold_us", *alone_us);
  return rows;
}

absl::StatusOr<int> run_incast_suite(const Options& options, const DistributedOptions& own) {
  // In sync all workers have the pace of the slowest: the suite could not show an unfair shard.
  GRADRAIL_ASSIGN_OR_RETURN(const ExchangeLoad load, load_of(options, own.exchange, 4, "async"));
  GRADRAIL_ASSIGN_OR_RETURN(const std::vector<uint64_t> list, sizes(options, "4K", "4M", sizeof(float)));
  GRADRAIL_RETURN_IF_ERROR(check_memory_of_sizes(load, list));
  GRADRAIL_ASSIGN_OR_RETURN(const std::vector<TransportChoice> choices,
                            choose_transports(options, !options.transports.empty(), own.exchange.encrypt_data));
  Report report(options, fmt::format("gradrail bench incast: {}", describe(load)));
  report.note("slowest/fastest: ratio of the workers' medians. aggregate: gradient bytes of all workers / time");
  report.note("shard_us, switches: time on a core and context switches of the shards for each gradient of a worker");
  if (has_cold_bound(load)) {
    report.note("cold_us: shm: an update alone, in the memory of another worker each time");
    report.note("         tcp: the bytes from and to as many sockets, without frames and update");
  }
  add_ranks(load, choices, report);
  report.begin(Layout::sweep);
  const auto measure = [&](const TransportChoice& choice, uint64_t bytes) {
    return rows_of(with(load, choice, bytes));
  };
  take_turns(options, list, exchange_contestants(choices, measure), report);
  return report.finish(!options.transports.empty());
}

}  // namespace

std::unique_ptr<Suite> new_incast_suite() { return std::make_unique<SuiteWith<DistributedOptions>>(run_incast_suite); }

}  // namespace gradrail::bench
