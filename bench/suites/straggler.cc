// Measures the cost of a slow worker for the others, mode by mode, with real workers and a real server. The load sets
// the duration of a step, so that processors do not decide.
#include <algorithm>
#include <future>
#include <numeric>
#include <optional>
#include <thread>

#include "CLI/CLI.hpp"
#include "base/clock.h"
#include "base/flags/number_in.h"
#include "base/resource_limits.h"
#include "base/status.h"
#include "bench/driver/rounds.h"
#include "bench/driver/suite.h"
#include "bench/report/isolated_figures.h"
#include "bench/suites/exchange_run.h"
#include "fmt/format.h"
#include "gradrail/client.h"
#include "ps/protocol/training.h"
#include "ps/server.h"

namespace gradrail::bench {
namespace {

/// A row must hold many steps of the slow worker, however short a round of other suites is.
/// With the default flags a slow step takes 20 ms: 0.3 s would hold 15 of them.
constexpr double kLonger = 5.0;

struct Scene {
  Mode mode;
  uint32_t workers = 4;
  uint64_t bytes = 0;
  double step_ms = 2.0;
  double slowdown = 1.0;  ///< factor of the last worker; 1: no worker is slow
  bool in_turn = false;   ///< instead: one step in ten is slow, of each worker in turn
  double seconds = 1.0;

  double step_ms_of(uint32_t worker, uint64_t step) const {
    // The slow step of each worker recurs once in 10 × workers steps. It models pauses of a shared machine.
    const bool is_slow = in_turn ? step % 10 == 0 && step / 10 % workers == worker : worker + 1 == workers;
    return is_slow ? step_ms * slowdown : step_ms;
  }
};

/// The result of one worker.
struct Share {
  absl::Status ended;
  std::vector<double> micros;  ///< times of each step, computing and exchange
  double seconds = 0.0;
  uint64_t advanced = 0;  ///< its position in the steps of the run
  ClientStats stats;
};

Share work(const Scene& scene, const ClusterSpec& cluster, uint32_t task) {
  Share share;
  const auto client = Client::join(
      {.cluster = cluster, .task_index = task, .mode = scene.mode, .transport = {.wait = {.spin = Duration::zero()}}},
      {{"gradient", {static_cast<int64_t>(scene.bytes / sizeof(float))}}});
  share.ended = client.ok() ? (*client)->start() : client.status();
  // Together: a worker that begins alone would not have to wait for others yet.
  if (share.ended.ok()) share.ended = (*client)->barriers().wait("begin");
  const TimePoint start = Clock::now();
  for (uint64_t step = 1; share.ended.ok() && seconds_since(start) < scene.seconds; ++step) {
    const TimePoint step_start = Clock::now();
    // A sleep replaces a computation: the result then does not depend on the number of cores.
    std::this_thread::sleep_for(std::chrono::duration<double, std::milli>(scene.step_ms_of(task, step)));
    (*client)->exchange();
    share.ended = (*client)->wait();
    share.micros.push_back(seconds_since(step_start) * 1e6);
  }
  if (!share.ended.ok()) return share;
  share.seconds = seconds_since(start);
  // The value is not the number of loops: a worker in `backup` skips the steps of the run that did not include it.
  share.advanced = (*client)->position();
  share.stats = (*client)->statistics().now();
  share.ended = (*client)->leave();
  return share;
}

absl::StatusOr<std::vector<Share>> play(const Scene& scene) {
  ClusterSpec cluster;
  for (uint32_t i = 0; i < scene.workers; ++i) cluster.workers.push_back(fmt::format("worker/{}", i));
  // All tasks are threads of this process, usually more than cores. They block: one that spins slows the others.
  GRADRAIL_ASSIGN_OR_RETURN(const auto server, ps::Server::start({.listen_address = "127.0.0.1:0",
                                                                  .advertised_host = "127.0.0.1",
                                                                  .transports = {"shm"},
                                                                  .worker_names = cluster.workers,
                                                                  .wait = {.spin = Duration::zero()}}));
  cluster.ps = {fmt::format("127.0.0.1:{}", server->port())};
  std::vector<Share> shares(scene.workers);
  std::vector<std::thread> threads;
  absl::Status started;
  // None begins without the others, for which it would wait.
  std::promise<bool> all_started;
  const std::shared_future<bool> begins = all_started.get_future().share();
  for (uint32_t i = 0; i < scene.workers && started.ok(); ++i) {
    absl::StatusOr<std::thread> thread = start_thread("of a worker", [&, i] {
      if (begins.get()) shares[i] = work(scene, cluster, i);
    });
    started = thread.status();
    if (thread.ok()) threads.push_back(*std::move(thread));
  }
  all_started.set_value(started.ok());
  // All are joined before an error is returned: their clients use the server on this stack.
  for (std::thread& thread : threads) thread.join();
  GRADRAIL_RETURN_IF_ERROR(started);
  for (const Share& share : shares) GRADRAIL_RETURN_IF_ERROR(share.ended);
  return shares;
}

/// Steps per second of the workers that are not always slow: the middle one's.
double pace_of(const Scene& scene, const std::vector<Share>& shares) {
  std::vector<double> paces;
  for (uint32_t i = 0; i < scene.workers - (scene.in_turn ? 0 : 1); ++i)
    paces.push_back(static_cast<double>(shares[i].advanced) / shares[i].seconds);
  std::nth_element(paces.begin(), paces.begin() + static_cast<std::ptrdiff_t>(paces.size() / 2), paces.end());
  return paces[paces.size() / 2];
}

absl::StatusOr<std::vector<Figure>> measure_scene(const Scene& scene, const std::string& name) {
  Scene even = scene;
  even.slowdown = 1.0;
  // The undisturbed run immediately precedes the slowed run: the speed of the machine may change between rounds.
  GRADRAIL_ASSIGN_OR_RETURN(const std::vector<Share> undisturbed, play(even));
  GRADRAIL_ASSIGN_OR_RETURN(std::vector<Share> slowed, play(scene));
  Figure figure;
  figure.path = name;
  figure.bytes = scene.bytes;
  figure.count = scene.bytes / sizeof(float);
  std::vector<double> micros;
  double waited = 0.0, seconds = 0.0, staleness = 0.0, exchanges = 0.0, dropped = 0.0;
  uint64_t staleness_max = 0;
  for (uint32_t i = 0; i < scene.workers; ++i) {
    const Share& share = slowed[i];
    const bool always_slow = !scene.in_turn && i + 1 == scene.workers;
    staleness_max = std::max(staleness_max, share.stats.staleness_max);
    staleness += static_cast<double>(share.stats.staleness_sum);
    exchanges += static_cast<double>(share.stats.exchange_count);
    dropped += static_cast<double>(share.stats.dropped);
    // The figure is the cost for the others: its own steps would hide it.
    if (always_slow) continue;
    micros.insert(micros.end(), share.micros.begin(), share.micros.end());
    waited += static_cast<double>(share.stats.wait_ns) * 1e-9;
    seconds += share.seconds;
  }
  figure.times = Times::of(micros);
  const double pace = pace_of(scene, slowed);
  figure.more = {{"steps_per_s", pace},
                 {"of_undisturbed", pace / pace_of(scene, undisturbed)},
                 {"waited_share", waited / seconds},
                 {"staleness_mean", exchanges > 0 ? staleness / exchanges : 0.0},
                 {"staleness_max", static_cast<double>(staleness_max)},
                 {"dropped_share", exchanges > 0 ? dropped / exchanges : 0.0}};
  return std::vector<Figure>{figure};
}

struct StragglerOptions {
  uint32_t workers = 4;
  double step_ms = 2.0;
  double slowdown = 10.0;

  void add_flags(CLI::App& app) {
    remove_flags(app, {"-n", "-w", "-c"});
    app.option_defaults()->group("Measurement");
    app.add_option("--workers", workers, "number of workers; one of them is slow")
        ->transform(NumberIn(2u, 64u))
        ->capture_default_str();
    app.add_option("--step_ms,--step-ms", step_ms, "milliseconds of computation in a step")
        ->transform(NumberIn(0.1, 1000.0))
        ->capture_default_str();
    app.add_option("--slowdown", slowdown, "factor of the slow worker's computation time")
        ->transform(NumberIn(1.0, 1000.0))
        ->capture_default_str();
  }
};

absl::StatusOr<int> run_straggler_suite(const Options& options, const StragglerOptions& own) {
  GRADRAIL_ASSIGN_OR_RETURN(const std::vector<uint64_t> list, sizes(options, "318040", "318040", sizeof(float)));
  const uint32_t workers = own.workers;
  GRADRAIL_RETURN_IF_ERROR(check_memory({.bytes = list.back(), .workers = workers}, "give a smaller size (-b, -e)"));
  Report report(
      options, fmt::format("gradrail bench straggler: {} workers, a step computes for {} ms, on a slow worker {} times "
                           "as long; over shm",
                           workers, own.step_ms, own.slowdown));
  report.note(
      "one slow: one worker is slow in all steps; times and steps_per_s are of the other workers. in turn: the slow");
  report.note("worker changes, one step in ten is slow. of_undisturbed: ratio to the same mode without a slow worker");
  report.note("dropped_share: of late gradients; without late=drop they entered a later step");
  report.begin(Layout::latency);
  const std::vector<std::string> modes = {"sync", fmt::format("quorum:{}", workers - 1),
                                          fmt::format("quorum:{},late=drop", workers - 1), "ssp:4", "async"};
  std::vector<Contestant> contestants;
  for (const bool in_turn : {false, true}) {
    for (const std::string& text : modes) {
      const Mode mode = *parse_mode(text);
      const std::string name = fmt::format("{}, {}", text, in_turn ? "in turn" : "one slow");
      contestants.push_back({name, [=, &options, &own](uint64_t bytes) {
                               const Scene scene{.mode = mode,
                                                 .workers = workers,
                                                 .bytes = bytes,
                                                 .step_ms = own.step_ms,
                                                 .slowdown = own.slowdown,
                                                 .in_turn = in_turn,
                                                 .seconds = kLonger * options.seconds};
                               // Two runs of that length, and as much again for joining and for slow steps at the end.
                               return isolated_figures(name, bytes, timeout_for(4 * kLonger * options.seconds),
                                                       [&] { return measure_scene(scene, name); });
                             }});
    }
  }
  take_turns(options, list, contestants, report);
  return report.finish(true);
}

}  // namespace

std::unique_ptr<Suite> new_straggler_suite() {
  return std::make_unique<SuiteWith<StragglerOptions>>(run_straggler_suite);
}

}  // namespace gradrail::bench
