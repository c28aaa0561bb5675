#include "bench/exchange_run.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <deque>
#include <thread>

#include "base/status.h"
#include "bench/apart.h"
#include "bench/exchange_worker.h"
#include "bench/stages.h"
#include "fmt/format.h"
#include "fmt/ranges.h"
#include "nlohmann/json.hpp"
#include "ps/server.h"

namespace gradrail::bench {
namespace {

/// What the tasks of a run give back beside the result.
struct Recordings {
  std::vector<Mark> workers;
  std::vector<Mark> shards;
};

class SharedPage {
 public:
  SharedPage()
      : page_(mmap(nullptr, sizeof(RunShared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0)),
        shared_(page_ == MAP_FAILED ? nullptr : new (page_) RunShared) {}
  ~SharedPage() {
    if (shared_ != nullptr) munmap(page_, sizeof(RunShared));
  }
  SharedPage(const SharedPage&) = delete;
  SharedPage& operator=(const SharedPage&) = delete;
  RunShared* get() { return shared_; }

 private:
  void* page_;
  RunShared* shared_;
};

nlohmann::json serve(const ExchangeLoad& load, RunShared& shared) {
  absl::StatusOr<std::unique_ptr<ps::Server>> server =
      ps::Server::start({.listen_address = fmt::format("{}:0", load.bind_host),
                         .advertised_host = load.bind_host,
                         .shard_count = load.shards,
                         .transports = {load.transport},
                         .rdma_only = load.rdma_only,
                         .ofi_provider = load.ofi_provider,
                         .worker_names = worker_names(load.workers),
                         .wait = wait_of(load),
                         .device = load.ps_device,
                         .marks = load.stages ? kMarks : 0,
                         .ablation = load.ablation});
  shared.port = server.ok() ? (*server)->port() : -1;
  if (!server.ok()) return {{"failed", std::string(message_of(server.status()))}};
  const std::atomic<bool> stop = false;
  const absl::Status ended = (*server)->wait_finished(stop);
  const std::vector<Mark> marks = (*server)->marks();
  server->reset();  // lets the answer to Leave out
  nlohmann::json result = {{"rank", rank_json("ps/0")}, {"marks", to_json(marks)}};
  if (!ended.ok()) result["failed"] = std::string(message_of(ended));
  return result;
}

Rank rank_from(const nlohmann::json& json) {
  return {.task = json.at("task"), .process = json.at("pid"), .cpus = json.at("cpus"), .numa = json.at("numa")};
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

void run_tasks(const ExchangeLoad& load, RunShared& shared, ExchangeResult& result, Recordings& recordings) {
  const TimePoint deadline =
      Clock::now() + 2 * kStartUp + std::chrono::milliseconds(static_cast<int64_t>(load.seconds * 8000));
  Apart server([&] { return serve(load, shared); });
  while (shared.port == 0 && Clock::now() < deadline) std::this_thread::sleep_for(std::chrono::microseconds(200));
  std::deque<Apart> workers;
  if (shared.port > 0)
    for (uint32_t i = 0; i < load.workers; ++i)
      workers.emplace_back([&load, &shared, i] { return work(load, shared, i); });
  for (size_t i = 0; i < workers.size(); ++i)
    if (!take(workers[i].result(deadline), fmt::format("worker/{}", i), result, recordings.workers)) return;
  take(server.result(deadline), "ps/0", result, recordings.shards);
}

ExchangeResult run_once(const ExchangeLoad& load, Recordings& recordings) {
  ExchangeResult result;
  result.figure.path = load.transport;
  result.figure.bytes = load.bytes;
  result.figure.count = load.bytes / sizeof(float);
  result.figure.alg_bytes = static_cast<double>(load.bytes);
  result.figure.bus_bytes = 2.0 * static_cast<double>(load.bytes);
  SharedPage page;
  if (page.get() == nullptr) {
    result.figure.failed = "no memory";
    return result;
  }
  run_tasks(load, *page.get(), result, recordings);
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
  if (load.stages && result.figure.failed.empty()) result.figure.stages = measure_stages(load);
  return result;
}

}  // namespace gradrail::bench
