#include "bench/exchange_run.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <deque>
#include <thread>

#include "base/status.h"
#include "bench/apart.h"
#include "bench/device_variables.h"
#include "bench/stages.h"
#include "fmt/format.h"
#include "fmt/ranges.h"
#include "nlohmann/json.hpp"
#include "ps/server.h"
#include "worker/client.h"

namespace gradrail::bench {
namespace {

constexpr Duration kSpin = std::chrono::seconds(1);
constexpr Duration kStartUp = std::chrono::seconds(20);  // joining, first touch of large regions, slow devices
constexpr uint64_t kCalibration = 5;                     // exchanges that the others' number is reckoned from
constexpr uint64_t kMostIterations = 1'000'000;
constexpr uint32_t kPatterns = 4;
constexpr size_t kMarks = 16384;  // of a task: some thousands of small exchanges, ten of 64 MiB

/// What the processes of a run tell each other beside what is measured.
struct Shared {
  std::atomic<int> port{0};             ///< of the server; negative: it could not start
  std::atomic<uint64_t> iterations{0};  ///< timed ones of each worker, said by worker 0; the highest bit: it gave up
};

/// What the tasks of a run give back beside the result.
struct Recordings {
  std::vector<Mark> workers;
  std::vector<Mark> shards;
};

class SharedPage {
 public:
  SharedPage()
      : page_(mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0)),
        shared_(page_ == MAP_FAILED ? nullptr : new (page_) Shared) {}
  ~SharedPage() {
    if (shared_ != nullptr) munmap(page_, sizeof(Shared));
  }
  SharedPage(const SharedPage&) = delete;
  SharedPage& operator=(const SharedPage&) = delete;
  Shared* get() { return shared_; }

 private:
  void* page_;
  Shared* shared_;
};

std::vector<std::string> worker_names(uint32_t count) { return std::vector<std::string>(count, "bench"); }

transport::WaitPolicy wait_of(const ExchangeLoad& load) { return {.spin = load.block ? Duration::zero() : kSpin}; }

nlohmann::json rank_json(const std::string& task) {
  const Rank rank = this_rank(task);
  return {{"task", rank.task}, {"pid", rank.process}, {"cpus", rank.cpus}, {"numa", rank.numa}};
}

nlohmann::json serve(const ExchangeLoad& load, Shared& shared) {
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

/// A worker of a run.
class Worker {
 public:
  Worker(const ExchangeLoad& load, Shared& shared, uint32_t index) : load_(load), shared_(shared), index_(index) {}

  nlohmann::json run() {
    const absl::Status status = measure();
    if (!status.ok() && index_ == 0) shared_.iterations = UINT64_MAX;
    if (!status.ok()) return {{"failed", std::string(message_of(status))}};
    const Times times = Times::of(micros_);
    Figure figure;
    figure.times = times;
    figure.wrong = wrong_;
    figure.path = path_;
    figure.why = why_;
    return {{"figure", to_json(figure)},
            {"seconds", seconds_},
            {"rank", rank_json(fmt::format("worker/{}", index_))},
            {"marks", to_json(marks_)}};
  }

 private:
  absl::Status measure() {
    GRADRAIL_RETURN_IF_ERROR(join());
    GRADRAIL_RETURN_IF_ERROR(write_gradient());
    for (uint64_t i = 0; i < kCalibration; ++i) GRADRAIL_RETURN_IF_ERROR(one());
    const absl::StatusOr<uint64_t> count = agree_on_count();
    if (!count.ok()) return count.status();
    micros_.reserve(*count);
    for (uint64_t i = warmup(*count); i > 0; --i) GRADRAIL_RETURN_IF_ERROR(one());
    micros_.clear();
    const TimePoint start = Clock::now();
    for (uint64_t i = 0; i < *count; ++i) GRADRAIL_RETURN_IF_ERROR(one());
    seconds_ = seconds_since(start);
    marks_ = client_->marks();
    if (load_.check && !load_.ablation.any()) GRADRAIL_RETURN_IF_ERROR(check());
    return client_->leave();
  }

  absl::Status join() {
    worker::ClientOptions options{.task_index = index_,
                                  .mode = load_.mode,
                                  .optimizer = optimizer(),
                                  .transports = {load_.transport},
                                  .rdma_only = load_.rdma_only,
                                  .ofi_provider = load_.ofi_provider,
                                  .bind_host = load_.bind_host,
                                  .wait = wait_of(load_),
                                  .join_timeout = kStartUp,
                                  .marks = load_.stages ? kMarks : 0};
    options.cluster = {.ps = {fmt::format("{}:{}", load_.bind_host, shared_.port.load())},
                       .workers = worker_names(load_.workers)};
    if (load_.bucket_bytes > 0) options.bucket_bytes = load_.bucket_bytes;
    GRADRAIL_RETURN_IF_ERROR(open_gpu(options));
    absl::StatusOr<std::unique_ptr<worker::Client>> joined = worker::Client::join(std::move(options), schema());
    if (!joined.ok()) return joined.status();
    client_ = *std::move(joined);
    for (size_t i = 0; i < tensors(); ++i)
      std::fill_n(client_->parameters(i).begin(), client_->parameters(i).size(), 0.0f);
    GRADRAIL_RETURN_IF_ERROR(client_->start());
    const worker::ClientStats stats = client_->stats();
    if (!stats.path_bytes.empty()) path_ = stats.path_bytes.front().path;
    if (!stats.paths.empty()) why_ = stats.paths.front();
    if (device_ != nullptr) {
      path_ += fmt::format(", {}", load_.gpu);
      why_ += fmt::format("; {}", client_->gpu_text());
    }
    return client_->barrier("joined");
  }

  absl::Status open_gpu(worker::ClientOptions& options) {
    if (load_.gpu.empty()) return absl::OkStatus();
    size_t elements = 0;
    for (const ps::Tensor& tensor : schema()) elements += tensor.elements();
    absl::StatusOr<std::unique_ptr<DeviceVariables>> device = DeviceVariables::create(load_.gpu, elements);
    if (!device.ok()) return device.status();
    device_ = *std::move(device);
    options.device = device_->memory();
    options.require_device = load_.gpu_way != worker::GpuWay::staged;
    options.gpu_ways.clear();
    if (options.require_device) options.gpu_ways.push_back(load_.gpu_way);
    return absl::OkStatus();
  }

  size_t tensors() const { return std::max<size_t>(1, load_.layers.size()); }

  ps::Schema schema() const {
    ps::Schema schema;
    for (const ExchangeLoad::Layer& layer : load_.layers)
      schema.push_back({fmt::format("layer {}", schema.size()), {static_cast<int64_t>(layer.elements)}});
    if (schema.empty()) schema.push_back({"gradient", {static_cast<int64_t>(load_.bytes / sizeof(float))}});
    return schema;
  }

  ps::OptimizerConfig optimizer() const {
    return {.kind = load_.optimizer, .learning_rate = load_.optimizer == ps::OptimizerKind::sgd ? 1.0f : 0.001f};
  }

  /// Of worker `worker`: equal for all in async mode, where nobody knows the order of updates.
  float gradient(uint32_t worker, size_t element) const {
    const uint32_t who = load_.mode == ps::ModeKind::sync ? worker : 0;
    return static_cast<float>(who + 1 + element % kPatterns);
  }

  absl::Status write_gradient() {
    if (device_ != nullptr) return write_on_device();
    for (size_t tensor = 0; tensor < tensors(); ++tensor) {
      const absl::Span<float> values = client_->gradients(tensor);
      for (size_t i = 0; i < values.size(); ++i) values[i] = gradient(index_, i);
    }
    return absl::OkStatus();
  }

  /// Past the host's copy: what arrives has to have come out of the GPU.
  absl::Status write_on_device() {
    std::vector<float> all;
    for (size_t tensor = 0; tensor < tensors(); ++tensor) {
      const size_t first = all.size();
      all.resize(first + client_->gradients(tensor).size());
      for (size_t i = first; i < all.size(); ++i) all[i] = gradient(index_, i - first);
    }
    return device_->write_gradients(all);
  }

  absl::Status one() {
    if (load_.touch) GRADRAIL_RETURN_IF_ERROR(write_gradient());
    const TimePoint begin = Clock::now();
    for (size_t i = 0; i < load_.layers.size(); ++i) {
      while (static_cast<double>(nanoseconds_since(begin)) * 1e-3 < load_.layers[i].ready_us) {
      }
      client_->ready(i);
    }
    client_->exchange();
    absl::Status status = client_->wait();
    micros_.push_back(static_cast<double>(nanoseconds_since(begin)) * 1e-3);
    return status;
  }

  absl::StatusOr<uint64_t> agree_on_count() {
    if (index_ == 0) {
      const double fastest = *std::min_element(micros_.begin(), micros_.end());
      const double wanted = load_.seconds * 1e6 / std::max(fastest, 0.1);
      shared_.iterations = load_.iterations > 0
                               ? load_.iterations
                               : std::clamp<uint64_t>(static_cast<uint64_t>(wanted), kCalibration, kMostIterations);
    }
    const TimePoint deadline = Clock::now() + kStartUp;
    while (shared_.iterations == 0) {
      if (Clock::now() > deadline) return absl::DeadlineExceededError("worker 0 did not get as far as this one");
      std::this_thread::sleep_for(std::chrono::microseconds(50));
    }
    if (shared_.iterations == UINT64_MAX) return absl::AbortedError("worker 0 gave up");
    return shared_.iterations.load();
  }

  uint64_t warmup(uint64_t count) const { return load_.warmup > 0 ? load_.warmup : count / 10; }

  /// Every parameter must be what that many updates make of it.
  absl::Status check() {
    GRADRAIL_RETURN_IF_ERROR(client_->barrier("measured"));
    GRADRAIL_RETURN_IF_ERROR(client_->pull());
    GRADRAIL_RETURN_IF_ERROR(client_->fetch());
    float wanted[kPatterns] = {};
    for (uint32_t pattern = 0; pattern < kPatterns; ++pattern) wanted[pattern] = expected(pattern);
    for (size_t tensor = 0; tensor < tensors(); ++tensor) {
      const absl::Span<float> values = client_->parameters(tensor);
      for (size_t i = 0; i < values.size(); ++i) wrong_ += values[i] != wanted[i % kPatterns] ? 1 : 0;
    }
    return client_->barrier("checked");
  }

  /// One element through all updates; the sum as a shard makes it, in the order of the workers.
  float expected(uint32_t pattern) const {
    const uint32_t summed = load_.mode == ps::ModeKind::sync ? load_.workers : 1;
    float mean = 0.0f;
    for (uint32_t worker = 0; worker < summed; ++worker) mean += gradient(worker, pattern);
    mean *= 1.0f / static_cast<float>(summed);
    const float* const gradients[] = {&mean};
    float parameter = 0.0f, state[2] = {0.0f, 0.0f};
    for (uint64_t update = 1; update <= client_->global_step(); ++update) {
      ps::apply(optimizer(), {.count = 1,
                              .parameters = &parameter,
                              .state = {&state[0], &state[1]},
                              .gradients = gradients,
                              .targets = {},
                              .update_index = update});
    }
    return parameter;
  }

  const ExchangeLoad& load_;
  Shared& shared_;
  const uint32_t index_;
  std::unique_ptr<DeviceVariables> device_;  ///< null: in host memory. Outlives the client
  std::unique_ptr<worker::Client> client_;
  std::vector<double> micros_;
  std::string path_, why_;
  double seconds_ = 0.0;
  uint64_t wrong_ = 0;
  std::vector<Mark> marks_;
};

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

void run_tasks(const ExchangeLoad& load, Shared& shared, ExchangeResult& result, Recordings& recordings) {
  const TimePoint deadline =
      Clock::now() + 2 * kStartUp + std::chrono::milliseconds(static_cast<int64_t>(load.seconds * 8000));
  Apart server([&] { return serve(load, shared); });
  while (shared.port == 0 && Clock::now() < deadline) std::this_thread::sleep_for(std::chrono::microseconds(200));
  std::deque<Apart> workers;
  if (shared.port > 0)
    for (uint32_t i = 0; i < load.workers; ++i)
      workers.emplace_back([&load, &shared, i] { return Worker(load, shared, i).run(); });
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
