#include "bench/suites/exchange_run.h"

#include <algorithm>
#include <cmath>
#include <deque>
#include <exception>
#include <utility>

#include "base/status.h"
#include "bench/cluster/member.h"
#include "bench/cluster/rank_coordinator.h"
#include "bench/driver/patience.h"
#include "bench/suites/exchange_worker.h"
#include "bench/suites/stages.h"
#include "fmt/format.h"
#include "fmt/ranges.h"
#include "nlohmann/json.hpp"

namespace gradrail::bench {
namespace {

// The first exchange contains page faults. The median of five does not.
constexpr uint64_t kProbes = 5;
// The time on an oversubscribed host: processes wait for their core several times in an exchange.
constexpr double kSlowestExchange_s = 0.02;
// Ethernet of 1 Gb/s, the slowest usual link.
constexpr double kSlowestBytesPerSecond = 100e6;
// The look at one process. With a hundred processes a failure is found within half a second.
constexpr Duration kGlance = std::chrono::milliseconds(5);

/// Tasks of a run on this host.
struct HostTasks {
  double workers = 0;
  double servers = 0;  ///< share of all servers, which share the parameters
};

HostTasks tasks_of_this_host(const ExchangeLoad& load) {
  if (load.coordinator == nullptr) return {.workers = static_cast<double>(load.workers), .servers = 1};
  // Servers have the first ranks; rank 0 is here.
  const std::vector<RankPlace> places = load.coordinator->places();
  const auto first_worker = places.begin() + static_cast<std::ptrdiff_t>(load.coordinator->servers().size());
  const auto count_here = [&](auto begin, auto end) {
    return static_cast<double>(
        std::count_if(begin, end, [&](const RankPlace& place) { return place.host_id == places.front().host_id; }));
  };
  return {.workers = count_here(first_worker, places.end()),
          .servers = count_here(places.begin(), first_worker) / static_cast<double>(first_worker - places.begin())};
}

/// Output of a run's tasks beside the result.
struct Recordings {
  std::vector<Mark> workers;
  std::vector<Mark> shards;
};

Rank rank_from(const nlohmann::json& json) {
  return {.task = json.at("task"),
          .host = json.at("host"),
          .process = json.at("pid"),
          .cpus = json.at("cpus"),
          .numa = json.at("numa")};
}

double median_of(const std::vector<Times>& workers, double Times::*value) {
  std::vector<double> values;
  for (const Times& times : workers) values.push_back(times.*value);
  // The middle worker, not the mean: one slow worker must not move the figure of all.
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

Times over_workers(const std::vector<Times>& workers) {
  Times all = workers.front();
  for (double Times::*value : {&Times::p50_us, &Times::mean_us, &Times::stdev_us})
    all.*value = median_of(workers, value);
  all.distribution_us = median_distribution(workers);
  all.count = 0;
  for (const Times& times : workers) {
    all.count += times.count;
    all.min_us = std::min(all.min_us, times.min_us);
    all.max_us = std::max(all.max_us, times.max_us);
    // The worst worker: quantiles of different workers have no common mean.
    all.p99_us = std::max(all.p99_us, times.p99_us);
    all.p999_us = std::max(all.p999_us, times.p999_us);
  }
  return all;
}

/// A member at its task.
struct Running {
  Member* member = nullptr;
  bool serves = false;
  size_t index = 0;
  std::string task() const { return fmt::format("{}/{}", serves ? "ps" : "worker", index); }
};

/// Takes a process' answer into the result; false: it failed, and the figure has the reason.
bool take(const absl::StatusOr<nlohmann::json>& answer, const Running& one, ExchangeResult& result,
          Recordings& recordings) {
  Figure& figure = result.figure;
  if (!answer.ok()) {
    figure.failed = fmt::format("{} {}", one.task(), message_of(answer.status()));
    return false;
  }
  // The process has ended in order and reports its own error, unlike a crash or a timeout above.
  if (answer->contains("failed")) {
    figure.failed = fmt::format("{}: {}", one.task(), answer->at("failed").get<std::string>());
    return false;
  }
  const std::vector<Mark> marks = marks_from(answer->at("marks"));
  std::vector<Mark>& all = one.serves ? recordings.shards : recordings.workers;
  all.insert(all.end(), marks.begin(), marks.end());
  // Workers first: they are what is timed.
  result.ranks[one.serves ? result.workers.size() + one.index : one.index] = rank_from(answer->at("rank"));
  if (one.serves) return true;
  const Figure own = figure_from(answer->at("figure"));
  // Path and reason are equal for all workers of a run: each has the same transports and settings.
  figure.path = own.path;
  figure.why = own.why;
  figure.wrong += own.wrong;
  result.workers[one.index] = own.times;
  // The longest, because the total throughput of `incast` counts until the last worker has ended.
  result.seconds = std::max(result.seconds, answer->at("seconds").get<double>());
  result.join_seconds = std::max(result.join_seconds, answer->at("join_seconds").get<double>());
  for (const auto& [name, value] : answer->at("shard").items()) result.shard.emplace_back(name, value.get<double>());
  return true;
}

absl::Status start(const std::vector<Member*>& servers, const std::vector<Member*>& workers, ExchangeLoad load,
                   TimePoint deadline, std::vector<Running>& running) {
  for (size_t i = 0; i < servers.size(); ++i) {
    const absl::StatusOr<std::string> address = servers[i]->serve(load, static_cast<uint32_t>(i), deadline);
    if (!address.ok())
      return absl::Status(address.status().code(), fmt::format("ps/{}: {}", i, message_of(address.status())));
    // Workers need all addresses, so the servers start first.
    load.servers.push_back(*address);
    running.push_back({servers[i], true, i});
  }
  for (size_t i = 0; i < workers.size(); ++i) {
    GRADRAIL_RETURN_IF_ERROR(workers[i]->work(load, static_cast<uint32_t>(i)));
    running.push_back({workers[i], false, i});
  }
  return absl::OkStatus();
}

/// Collects the results in the order in which the tasks end, so that a failed one is found before others have waited
/// for it in vain.
bool collect(std::vector<Running> running, Patience& patience, ExchangeResult& result, Recordings& recordings) {
  uint64_t seen = 0;
  while (!running.empty()) {
    uint64_t reports = 0;
    for (const Running& one : running) reports += one.member->reports();
    // Less than before, if a member has ended: the others then report as well.
    if (std::exchange(seen, reports) < reports) patience.turn_ended();
    const TimePoint deadline = patience.deadline();
    for (size_t i = 0; i < running.size(); ++i) {
      // A copy: erase() below moves the elements.
      const Running one = running[i];
      if (!one.member->is_done(kGlance) && Clock::now() < deadline) continue;
      try {  // data of another process
        if (!take(one.member->collect(deadline), one, result, recordings)) return false;
      } catch (const std::exception& error) {
        result.figure.failed = fmt::format("{}: {}", one.task(), error.what());
        return false;
      }
      running.erase(running.begin() + static_cast<std::ptrdiff_t>(i--));
    }
  }
  return true;
}

Patience::Limits limits_of(const ExchangeLoad& load) {
  const Duration whole = time_limit(load);
  // The initial values and an exchange, of all workers over one link.
  const double bytes = 4.0 * static_cast<double>(load.bytes) * load.workers;
  return {.whole = whole,
          .first_turn = load.transport == "shm" ? whole : whole + link_time(bytes),
          .pause = start_up(load)};
}

/// Runs the tasks. False: one of them failed, and the figure has the reason. Every member has no task afterwards.
bool run_tasks(const std::vector<Member*>& servers, const std::vector<Member*>& workers, const ExchangeLoad& load,
               ExchangeResult& result, Recordings& recordings) {
  Patience patience(limits_of(load));
  std::vector<Running> running;
  result.workers.resize(workers.size());
  result.ranks.resize(servers.size() + workers.size());
  const absl::Status started = start(servers, workers, load, patience.deadline(), running);
  if (!started.ok()) result.figure.failed = message_of(started);
  const bool good = started.ok() && collect(running, patience, result, recordings);
  // The steps of a worker lack the gradients of those that failed.
  if (!good) result.figure.wrong = 0;
  // The loop runs also after a failure: the members of several hosts take the next run.
  for (const std::vector<Member*>* members : {&servers, &workers})
    for (Member* const member : *members) member->abandon();
  return good;
}

void run_here(const ExchangeLoad& load, ExchangeResult& result, Recordings& recordings) {
  SharedPage page;
  if (page.get() == nullptr) {
    result.figure.failed = "no memory";
    return;
  }
  LocalMember server(page);
  std::deque<LocalMember> members;
  std::vector<Member*> workers;
  for (uint32_t i = 0; i < load.workers; ++i) workers.push_back(&members.emplace_back(page));
  // The result has the reason of a failure, as in run_there().
  run_tasks({&server}, workers, load, result, recordings);
}

/// Runs an exchange on other hosts. No process shares memory with all of them: a separate run determines the number of
/// exchanges.
void run_there(ExchangeLoad load, ExchangeResult& result, Recordings& recordings) {
  std::vector<Member*> servers = load.coordinator->servers(), workers = load.coordinator->workers();
  if (load.pair.server != nullptr) {
    servers = {load.pair.server};
    workers = {load.pair.worker};
  }
  if (load.iterations == 0) {
    ExchangeLoad probe = load;
    probe.iterations = kProbes;
    probe.warmup = 1;
    // A check needs barriers and a pull, and gives no information about the time of an exchange.
    probe.check = false;
    ExchangeResult probed;
    Recordings none;
    if (!run_tasks(servers, workers, probe, probed, none)) {
      result.figure.failed = probed.figure.failed;
      return;
    }
    load.iterations = exchanges_within(load.seconds, over_workers(probed.workers).p50_us);
  }
  run_tasks(servers, workers, load, result, recordings);
}

ExchangeResult run_once(const ExchangeLoad& load, Recordings& recordings) {
  ExchangeResult result;
  result.figure.path = load.transport;
  result.figure.bytes = load.bytes;
  result.figure.count = load.bytes / sizeof(float);
  result.figure.alg_bytes = static_cast<double>(load.bytes);
  // Gradients in one direction, parameters in the other.
  result.figure.bus_bytes = (load.ablation.no_return ? 1.0 : 2.0) * static_cast<double>(load.bytes);
  load.coordinator == nullptr ? run_here(load, result, recordings) : run_there(load, result, recordings);
  if (result.figure.failed.empty()) result.figure.times = over_workers(result.workers);
  return result;
}

/// Measures stages in a separate run, since marks take time, too.
void measure_stages(ExchangeLoad load, Figure& figure) {
  load.check = false;
  // Shorter: the rings keep the last kMarks marks only, and the timed run has checked the results already.
  load.seconds /= 4;
  Recordings recordings;
  const ExchangeResult result = run_once(load, recordings);
  figure.stages = stages_of(recordings.workers, recordings.shards, !load.layers.empty());
  if (!figure.stages.empty()) return;
  // A run without an error has no stages if no exchange has all its marks: each has more marks than a ring.
  figure.why_no_stages = !result.figure.failed.empty() ? result.figure.failed
                                                       : fmt::format("there is room for {} marks of a task", kMarks);
}

}  // namespace

std::string left_out(const ExchangeLoad& load) {
  std::vector<std::string> parts;
  if (load.ablation.no_sum) parts.push_back("sum");
  if (load.ablation.no_optimizer) parts.push_back("optimizer");
  if (load.ablation.no_return) parts.push_back("return of parameters");
  return fmt::format("{}", fmt::join(parts, ", "));
}

Duration time_limit(const ExchangeLoad& load) {
  // Exchanges that take place also if one of them is longer than the timed part.
  const auto timed = static_cast<double>(load.iterations > 0 ? load.iterations : kCalibration);
  const double warmup = load.warmup > 0 ? static_cast<double>(load.warmup) : timed / 10;
  const double backward_s = load.layers.empty() ? 0.0 : load.layers.back().ready_us * 1e-6;
  const double bytes = 2.0 * static_cast<double>(load.bytes) * load.workers;
  const double step_s = backward_s + kSlowestExchange_s + bytes / kSlowestBytesPerSecond;
  // Eight times the timed part: the run also has a warm-up and a check. A few exchanges set the number, and others may
  // take several times as long.
  const double seconds = 8 * load.seconds + (kCalibration + warmup + timed) * step_s;
  // A large number of exchanges must not overflow the clock.
  constexpr double kLongest_s = 1e8;
  // Two start-ups: joining, then the wait for the number of exchanges.
  return 2 * start_up(load) + std::chrono::milliseconds(static_cast<int64_t>(std::min(seconds, kLongest_s) * 1000));
}

absl::Status check_memory(const ExchangeLoad& load, std::string_view remedy, const SystemFiles& files) {
  const HostTasks tasks = tasks_of_this_host(load);
  // Floating point, because the product can exceed 64 bits.
  const double vectors = 2 * tasks.workers + tasks.servers * (1 + ps::state_vectors(load.optimizer));
  const double bytes = vectors * static_cast<double>(load.bytes);
  const std::string who =
      tasks.workers > 0 ? fmt::format("{:.0f} worker{} and the server", tasks.workers, tasks.workers == 1 ? "" : "s")
                        : "the servers";
  return check_available_memory(fmt::format("gradients of {} bytes: {} need", load.bytes, who), bytes,
                                fmt::format("{}{}", remedy, tasks.workers > 1 ? ", or fewer workers" : ""),
                                static_cast<uint64_t>(tasks.workers + std::ceil(tasks.servers)), files);
}

ExchangeResult run_exchange(const ExchangeLoad& load) {
  ExchangeLoad timed = load;
  // Marks take time: the figure is that of a run without them.
  timed.stages = false;
  Recordings none;
  ExchangeResult result = run_once(timed, none);
  if (!load.stages || !result.figure.failed.empty()) return result;
  // A stage begins in one process and ends in another.
  const bool one_clock = load.coordinator == nullptr || load.coordinator->on_one_host();
  one_clock ? measure_stages(load, result.figure) : void(result.figure.why_no_stages = "several hosts, several clocks");
  return result;
}

}  // namespace gradrail::bench
