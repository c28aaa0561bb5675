#include "bench/exchange_run.h"

#include <algorithm>
#include <deque>

#include "base/status.h"
#include "bench/exchange_worker.h"
#include "bench/meeting.h"
#include "bench/member.h"
#include "bench/stages.h"
#include "fmt/format.h"
#include "fmt/ranges.h"
#include "nlohmann/json.hpp"

namespace gradrail::bench {
namespace {

constexpr uint64_t kProbes = 5;

/// What the tasks of a run give back beside the result.
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
    all.p99_us = std::max(all.p99_us, times.p99_us);
    all.p999_us = std::max(all.p999_us, times.p999_us);
  }
  return all;
}

/// Takes a process' answer into the result; false: it failed, and the figure says why.
bool take(const absl::StatusOr<nlohmann::json>& answer, const std::string& task, ExchangeResult& result,
          std::vector<Mark>& marks) {
  Figure& figure = result.figure;
  if (!answer.ok()) {
    figure.failed = fmt::format("{} {}", task, message_of(answer.status()));
  } else if (answer->contains("failed")) {
    figure.failed = fmt::format("{}: {}", task, answer->at("failed").get<std::string>());
  } else {
    result.ranks.push_back(rank_from(answer->at("rank")));
    const std::vector<Mark> recorded = marks_from(answer->at("marks"));
    marks.insert(marks.end(), recorded.begin(), recorded.end());
    if (!answer->contains("figure")) return true;
    const Figure one = figure_from(answer->at("figure"));
    figure.path = one.path;
    figure.why = one.why;
    figure.wrong += one.wrong;
    result.workers.push_back(one.times);
    result.seconds = std::max(result.seconds, answer->at("seconds").get<double>());
    return true;
  }
  return false;
}

/// False: one of them failed. Every member is left without a task.
bool run_tasks(const std::vector<Member*>& servers, const std::vector<Member*>& workers, ExchangeLoad load,
               ExchangeResult& result, Recordings& recordings) {
  const TimePoint deadline =
      Clock::now() + 2 * kStartUp + std::chrono::milliseconds(static_cast<int64_t>(load.seconds * 8000));
  bool good = true;
  const auto collect = [&](const std::vector<Member*>& members, const char* job, std::vector<Mark>& marks) {
    for (size_t i = 0; i < members.size(); ++i) {
      if (good) good = take(members[i]->collect(deadline), fmt::format("{}/{}", job, i), result, marks);
      members[i]->abandon();
    }
  };
  for (size_t i = 0; good && i < servers.size(); ++i) {
    const absl::StatusOr<std::string> address = servers[i]->serve(load, static_cast<uint32_t>(i), deadline);
    good = address.ok();
    if (good) load.servers.push_back(*address);
    if (!good) result.figure.failed = fmt::format("ps/{}: {}", i, message_of(address.status()));
  }
  if (good) {
    for (size_t i = 0; i < workers.size(); ++i) workers[i]->work(load, static_cast<uint32_t>(i));
    collect(workers, "worker", recordings.workers);
  }
  collect(servers, "ps", recordings.shards);
  return good;
}

void run_here(const ExchangeLoad& load, ExchangeResult& result, Recordings& recordings) {
  SharedPage page;
  if (page.get() == nullptr) {
    result.figure.failed = "no memory";
    return;
  }
  LocalMember server(*page.get());
  std::deque<LocalMember> members;
  std::vector<Member*> workers;
  for (uint32_t i = 0; i < load.workers; ++i) workers.push_back(&members.emplace_back(*page.get()));
  run_tasks({&server}, workers, load, result, recordings);
}

/// Nobody shares memory with all of them: how often they exchange is found by a run of its own.
void run_there(ExchangeLoad load, ExchangeResult& result, Recordings& recordings) {
  const std::vector<Member*> servers = load.meeting->servers(), workers = load.meeting->workers();
  if (load.iterations == 0) {
    ExchangeLoad probe = load;
    probe.iterations = kProbes;
    probe.warmup = 1;
    probe.check = false;
    ExchangeResult probed;
    Recordings none;
    if (!run_tasks(servers, workers, probe, probed, none)) {
      result.figure.failed = probed.figure.failed;
      return;
    }
    load.iterations = exchanges_within(load.seconds, over_workers(probed.workers).min_us);
  }
  run_tasks(servers, workers, load, result, recordings);
}

ExchangeResult run_once(const ExchangeLoad& load, Recordings& recordings) {
  ExchangeResult result;
  result.figure.path = load.transport;
  result.figure.bytes = load.bytes;
  result.figure.count = load.bytes / sizeof(float);
  result.figure.alg_bytes = static_cast<double>(load.bytes);
  result.figure.bus_bytes = 2.0 * static_cast<double>(load.bytes);
  load.meeting == nullptr ? run_here(load, result, recordings) : run_there(load, result, recordings);
  if (result.figure.failed.empty()) result.figure.times = over_workers(result.workers);
  return result;
}

/// In a run of its own, since marks take time, too.
std::vector<std::pair<std::string, double>> measure_stages(ExchangeLoad load) {
  load.check = false;
  load.seconds /= 4;
  Recordings recordings;
  const ExchangeResult result = run_once(load, recordings);
  if (!result.figure.failed.empty()) return {};
  return stages_of(recordings.workers, recordings.shards, !load.layers.empty());
}

}  // namespace

std::string left_out(const ExchangeLoad& load) {
  std::vector<std::string> parts;
  if (load.ablation.no_sum) parts.push_back("sum");
  if (load.ablation.no_optimizer) parts.push_back("optimizer");
  if (load.ablation.no_return) parts.push_back("return of parameters");
  return fmt::format("{}", fmt::join(parts, ", "));
}

ExchangeResult run_exchange(const ExchangeLoad& load) {
  ExchangeLoad timed = load;
  timed.stages = false;
  Recordings none;
  ExchangeResult result = run_once(timed, none);
  const bool one_clock = load.meeting == nullptr || load.meeting->on_one_host();
  if (load.stages && one_clock && result.figure.failed.empty()) result.figure.stages = measure_stages(load);
  return result;
}

}  // namespace gradrail::bench
