#include "bench/suites/exchange_worker.h"

#include <algorithm>
#include <atomic>
#include <numeric>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "base/check.h"
#include "base/clock.h"
#include "base/status.h"
#include "bench/driver/patience.h"
#include "bench/driver/thread_cost.h"
#include "bench/layers/traffic_matrix.h"
#include "bench/suites/device_variables.h"
#include "bench/suites/stages.h"
#include "fmt/format.h"
#include "gradrail/client.h"
#include "nlohmann/json.hpp"
#include "ps/optimizer/optimizer.h"
#include "ps/optimizer/returns.h"
#include "ps/protocol/push_format.h"

namespace gradrail::bench {
namespace {

// The time is longer than an exchange of any usual size: a wait never blocks within a measurement.
constexpr Duration kSpin = std::chrono::seconds(1);
// A barrier of some hundred workers on two cores takes about this time.
constexpr double kBarrier_us = 2000;
// The times of one worker then take 8 MB.
constexpr uint64_t kMostIterations = 1'000'000;
// Neighboring elements differ, so that bytes which arrive shifted are found. 3 does not divide 32: the two elements in
// a byte of int4 differ as well. All elements have one magnitude, and therefore one scale. The rounding of an element
// is therefore independent of its block, and a few elements represent all. topk
// selects among a whole chunk: all elements are computed.
constexpr float kPattern[] = {1.0f, -1.0f, 0.0f};
constexpr size_t kPatterns = std::size(kPattern);

/// The pushes of one worker, for the check.
struct Pushes {
  std::vector<float> gradient, rest, packed;  ///< [elements], also where fewer are packed

  void next(PushFormat format) {
    if (format == PushFormat::fp32) {
      packed = gradient;
    } else {
      ps::pack(format, gradient, rest.data(), packed.data());
    }
  }
};

/// A worker of a run.
class Worker {
 public:
  Worker(const ExchangeLoad& load, RunShared& shared, uint32_t index) : load_(load), shared_(shared), index_(index) {
    if (!load.traffic.empty()) pieces_ = pieces_of(load.traffic);
  }

  nlohmann::json run() {
    const absl::Status status = measure();
    // The others wait for these numbers: the value ends their wait immediately.
    if (!status.ok() && index_ == 0) shared_.warmup = shared_.iterations = UINT64_MAX;
    if (!status.ok()) return {{"failed", std::string(message_of(status))}};
    // A child sends its distribution and not its times, which are a million numbers at most.
    const Times times = Times::of(micros_);
    Figure figure;
    figure.times = times;
    figure.wrong = wrong_;
    figure.path = path_;
    figure.why = why_;
    return {{"figure", to_json(figure)},
            {"seconds", seconds_},
            {"join_seconds", join_seconds_},
            {"shard", shard_},
            {"rank", rank_json(fmt::format("worker/{}", index_))},
            {"marks", to_json(marks_)}};
  }

 private:
  absl::Status measure() {
    const TimePoint joining = Clock::now();
    GRADRAIL_RETURN_IF_ERROR(join());
    join_seconds_ = seconds_since(joining);
    GRADRAIL_RETURN_IF_ERROR(write_gradient());
    // In `async` the first worker would measure its exchanges before the others load the server.
    GRADRAIL_RETURN_IF_ERROR(client_->barriers().wait("joined"));
    // All workers take part in these exchanges: in `sync` no step ends without one of them.
    for (uint64_t i = 0; i < kCalibration; ++i) GRADRAIL_RETURN_IF_ERROR(one());
    GRADRAIL_ASSIGN_OR_RETURN(const uint64_t warmup, agree(shared_.warmup, warmup_given(), load_.seconds / 10));
    micros_.clear();
    for (uint64_t i = 0; i < warmup; ++i) GRADRAIL_RETURN_IF_ERROR(one());
    GRADRAIL_ASSIGN_OR_RETURN(const uint64_t count, agree(shared_.iterations, iterations_given(), load_.seconds));
    micros_.clear();
    // No allocation while the clock runs.
    micros_.reserve(count);
    const ServerUse before = server_use();
    const TimePoint start = Clock::now();
    for (uint64_t i = 0; i < count; ++i) GRADRAIL_RETURN_IF_ERROR(one());
    seconds_ = seconds_since(start);
    count_shard_time(before, server_use());
    // Before the check: its pull adds marks of its own.
    marks_ = client_->traces().marks();
    if (load_.check && !load_.ablation.any()) GRADRAIL_RETURN_IF_ERROR(check());
    return client_->leave();
  }

  struct ServerUse {
    std::optional<ThreadCost> shards;
    double gradients = 0.0;  ///< gradients of all workers
  };

  /// Worker 0 reads it for all: the gradients of the others count in the steps.
  ServerUse server_use() const {
    if (index_ != 0 || shared_.server == 0) return {};
    const double each = load_.mode.sums() ? load_.workers : 1;
    return {.shards = thread_cost(shared_.server, "gradrail-shard"),
            .gradients = each * static_cast<double>(client_->global_step())};
  }

  void count_shard_time(const ServerUse& before, const ServerUse& after) {
    const double gradients = after.gradients - before.gradients;
    if (!before.shards || !after.shards || gradients <= 0) return;
    shard_ = {{"shard_us", (after.shards->cpu_us - before.shards->cpu_us) / gradients},
              {"switches", (after.shards->switches - before.shards->switches) / gradients},
              {"server_MB", after.shards->resident_mb}};
  }

  absl::Status join() {
    ClientOptions options{.task_index = index_,
                          .mode = load_.mode,
                          .optimizer = optimizer(),
                          .compression = {.push = load_.push, .returns = load_.returns},
                          .transport = {.order = {load_.transport},
                                        .rdma_only = load_.rdma_only,
                                        .ofi_provider = load_.ofi_provider,
                                        .bind_host = load_.bind_host,
                                        .streams = load_.streams,
                                        .wait = wait_of(load_)},
                          .security = security_of(load_),
                          .recovery = {.join_timeout = start_up(load_)},
                          .hooks = {.marks = load_.stages ? kMarks : 0}};
    options.cluster = {.ps = load_.servers, .workers = worker_names(load_.workers)};
    if (load_.bucket_bytes > 0) options.bucket_bytes = load_.bucket_bytes;
    GRADRAIL_RETURN_IF_ERROR(open_gpu(options));
    GRADRAIL_ASSIGN_OR_RETURN(std::unique_ptr<Client> joined, Client::join(std::move(options), schema()));
    client_ = std::move(joined);
    for (size_t i = 0; i < tensors(); ++i)
      // The values of the chief are used; zeros let expected() compute the result of a few elements.
      std::fill_n(client_->parameters(i).begin(), client_->parameters(i).size(), 0.0f);
    GRADRAIL_RETURN_IF_ERROR(client_->start());
    const ClientStats stats = client_->statistics().now();
    if (!stats.path_bytes.empty()) path_ = stats.path_bytes.front().path;
    if (!stats.paths.empty()) why_ = stats.paths.front();
    if (device_ != nullptr) {
      path_ += fmt::format(", {}", load_.gpu);
      why_ += fmt::format("; {}", client_->device().text());
    }
    // A worker that measures before all have joined would measure a smaller run.
    return client_->barriers().wait("joined");
  }

  absl::Status open_gpu(ClientOptions& options) {
    if (load_.gpu.empty()) return absl::OkStatus();
    size_t elements = 0;
    for (const Tensor& tensor : schema()) elements += tensor.elements();
    GRADRAIL_ASSIGN_OR_RETURN(device_, DeviceVariables::create(load_.gpu, elements, load_.push));
    const bool is_direct = load_.gpu_transfer != GpuTransfer::staged;
    // One method or none: a fallback to another one would give its figures to this row.
    options.placement = {.device = device_->memory(), .gpu_transfers = {}, .require_device = is_direct};
    if (is_direct) options.placement.gpu_transfers.push_back(load_.gpu_transfer);
    return absl::OkStatus();
  }

  size_t tensors() const { return std::max<size_t>(1, std::max(load_.layers.size(), pieces_.size())); }

  Schema schema() const {
    Schema schema;
    for (const ExchangeLoad::Layer& layer : load_.layers)
      schema.push_back({fmt::format("layer {}", schema.size()), {static_cast<int64_t>(layer.elements)}});
    for (const TrafficPiece& piece : pieces_) {
      const std::string name = fmt::format("shard {} from byte {}", piece.shard, piece.first);
      schema.push_back({name, {static_cast<int64_t>(piece.bytes / sizeof(float))}, name});
    }
    if (schema.empty()) schema.push_back({"gradient", {static_cast<int64_t>(load_.bytes / sizeof(float))}});
    return schema;
  }

  OptimizerConfig optimizer() const {
    // A lost update of sgd is not lost in the rounding with rate 1. expected() rounds alike.
    return {.kind = load_.optimizer, .learning_rate = load_.optimizer == OptimizerKind::sgd ? 1.0f : 0.001f};
  }

  /// The gradient of `worker`, which most formats round. Updates without an order have equal gradients that the format
  /// holds exactly: int8 and int4 have a scale of 1.
  float gradient(uint32_t worker, size_t element) const {
    const float exact = load_.push == PushFormat::int8 ? 127.0f : 7.0f;
    return kPattern[element % kPatterns] * (load_.mode.sums() ? 1.1f * static_cast<float>(worker + 1) : exact);
  }

  absl::Status write_gradient() {
    if (device_ != nullptr) return write_on_device();
    for (size_t tensor = 0; tensor < tensors(); ++tensor) {
      const absl::Span<float> values = client_->gradients(tensor);
      for (size_t i = 0; i < values.size(); ++i) values[i] = gradient(index_, i);
    }
    return absl::OkStatus();
  }

  /// Writes past the host's copy: the data that arrive must then have left the GPU.
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
    // A step of a matrix has all its entries: all workers begin it together.
    if (!pieces_.empty()) GRADRAIL_RETURN_IF_ERROR(client_->barriers().wait("step"));
    const TimePoint begin = Clock::now();
    for (size_t i = 0; i < load_.layers.size(); ++i) {
      // A layer keeps its core while it computes: a sleep would free the core and end late.
      while (static_cast<double>(nanoseconds_since(begin)) * 1e-3 < load_.layers[i].ready_us) {
      }
      client_->ready(i);
    }
    push();
    absl::Status status = client_->wait();
    const TimePoint end = Clock::now();
    micros_.push_back(std::chrono::duration<double, std::micro>(end - begin).count());
    if (end - reported_ >= kReportTurnsEvery) {
      reported_ = end;
      ++shared_.reports;
    }
    return status;
  }

  void push() {
    ++steps_;
    if (pieces_.empty()) return client_->exchange();
    // Each piece is a fragment.
    for (uint32_t i = 0; i < pieces_.size(); ++i)
      if (load_.traffic[index_][pieces_[i].shard] > pieces_[i].first) client_->exchange(i);
  }

  /// The number that is given, or that fills the time at the pace of the last exchanges of worker 0. All workers run
  /// equally many: `sync` would wait forever for the gradient of one that runs fewer.
  absl::StatusOr<uint64_t> agree(std::atomic<uint64_t>& number, std::optional<uint64_t> given, double seconds) {
    if (given) return *given;
    if (index_ == 0) {
      // The mean: one worker of many on a core exchanges some times in a row, and then waits for its turn.
      const double sum = std::accumulate(micros_.begin(), micros_.end(), 0.0);
      // The barrier of a step is not timed, and takes longer than a small exchange.
      const double least = pieces_.empty() ? 0.0 : kBarrier_us;
      number = exchanges_within(seconds, std::max(sum / static_cast<double>(micros_.size()), least));
    }
    // The run has a deadline, which ends this process. Worker 0 may be an exchange behind, on a link of any rate.
    while (number == 0) {
      // A sleep: worker 0 may still measure on the same core.
      std::this_thread::sleep_for(std::chrono::microseconds(50));
    }
    if (number == UINT64_MAX) return absl::AbortedError("worker 0 gave up");
    return number.load();
  }

  std::optional<uint64_t> warmup_given() const {
    if (load_.warmup > 0) return load_.warmup;
    return load_.iterations > 0 ? std::optional(load_.iterations / 10) : std::nullopt;
  }

  std::optional<uint64_t> iterations_given() const {
    return load_.iterations > 0 ? std::optional(load_.iterations) : std::nullopt;
  }

  /// Every parameter must be what that many updates make of it.
  absl::Status check() {
    // The last updates of the others must be in the parameters before this worker reads them.
    GRADRAIL_RETURN_IF_ERROR(client_->barriers().wait("measured"));
    GRADRAIL_RETURN_IF_ERROR(client_->pull());
    GRADRAIL_RETURN_IF_ERROR(client_->device().fetch());
    std::vector<float> wanted;
    size_t first = 0;
    for (size_t tensor = 0; tensor < tensors(); ++tensor) {
      if (tensor == 0 || !pieces_.empty()) wanted = expected(updates_of(tensor));
      const absl::Span<float> values = client_->parameters(tensor);
      for (size_t i = 0; i < values.size(); ++i)
        wrong_ += values[i] != wanted[computes_all() ? first + i : i % kPatterns] ? 1 : 0;
      first += values.size();
    }
    return client_->barriers().wait("checked");
  }

  /// Number of updates of a tensor. The entries of a matrix decide it: each worker has made as many steps.
  uint64_t updates_of(size_t tensor) const {
    if (pieces_.empty()) return client_->global_step();
    const TrafficPiece& piece = pieces_[tensor];
    return steps_ *
           static_cast<uint64_t>(std::count_if(load_.traffic.begin(), load_.traffic.end(),
                                               [&](const auto& row) { return row[piece.shard] > piece.first; }));
  }

  bool computes_all() const { return load_.push.kind == PushFormat::topk; }

  /// The gradients of `worker` that expected() computes with.
  std::vector<float> gradients_of(uint32_t worker) const {
    std::vector<float> values;
    for (size_t tensor = 0; tensor < (computes_all() ? tensors() : 1); ++tensor) {
      const size_t count = computes_all() ? client_->gradients(tensor).size() : kPatterns;
      for (size_t i = 0; i < count; ++i) values.push_back(gradient(worker, i));
    }
    return values;
  }

  /// The parameters after so many updates. Each worker packs its gradient with the rest of the push before. The sum has
  /// the order of the workers.
  /// Shapes  [kPatterns], or [elements] in topk.
  std::vector<float> expected(uint64_t updates) const {
    std::vector<Pushes> pushes;
    // Floating-point sums depend on the order, and the check compares bits.
    for (uint32_t worker = 0; worker < (load_.mode.sums() ? load_.workers : 1); ++worker) {
      const std::vector<float> values = gradients_of(worker);
      pushes.push_back({values, std::vector<float>(values.size()), std::vector<float>(values.size())});
    }
    const size_t count = pushes[0].gradient.size();
    std::vector<float> parameters(count), mean(count), state[2] = {mean, mean};
    const float* const gradients[] = {mean.data()};
    for (uint64_t update = 1; update <= updates; ++update) {
      std::vector<const float*> buckets;
      for (Pushes& each : pushes) {
        each.next(load_.push);
        buckets.push_back(each.packed.data());
      }
      ps::mean_of(buckets, {}, load_.push, absl::MakeSpan(mean));
      // Each push of a worker is then the same, whatever the order.
      GRADRAIL_CHECK(load_.mode.sums() || pushes[0].rest[0] == 0.0f);
      ps::apply(optimizer(), {.count = count,
                              .parameters = parameters.data(),
                              .state = {state[0].data(), state[1].data()},
                              .gradients = gradients,
                              .update_index = update});
    }
    if (load_.returns != ReturnFormat::fp32) {
      std::vector<uint16_t> rounded(count);
      ps::round_to_bf16(parameters, rounded.data());
      ps::widen_bf16(rounded.data(), absl::MakeSpan(parameters));
    }
    return parameters;
  }

  const ExchangeLoad& load_;
  RunShared& shared_;
  const uint32_t index_;
  std::vector<TrafficPiece> pieces_;         ///< tensors of a traffic matrix, each a fragment; empty: no matrix
  std::unique_ptr<DeviceVariables> device_;  ///< null: in host memory. Outlives the client
  std::unique_ptr<Client> client_;
  std::vector<double> micros_;
  TimePoint reported_ = Clock::now();
  std::string path_, why_;
  double seconds_ = 0.0, join_seconds_ = 0.0;
  nlohmann::json shard_ = nlohmann::json::object();
  uint64_t wrong_ = 0, steps_ = 0;
  std::vector<Mark> marks_;
};

}  // namespace

nlohmann::json work(const ExchangeLoad& load, RunShared& shared, uint32_t index) {
  return Worker(load, shared, index).run();
}

uint64_t exchanges_within(double seconds, double micros) {
  // A clock that did not advance would give a division by zero.
  const double wanted = seconds * 1e6 / std::max(micros, 0.1);
  return std::clamp<uint64_t>(static_cast<uint64_t>(wanted), kCalibration, kMostIterations);
}

// Workers of a bench have no address: they connect to servers, and no task connects to them.
std::vector<std::string> worker_names(uint32_t count) { return std::vector<std::string>(count, "bench"); }

WaitPolicy wait_of(const ExchangeLoad& load) { return {.spin = load.block ? Duration::zero() : kSpin}; }

nlohmann::json rank_json(const std::string& task) {
  const Rank rank = this_rank(task);
  return {{"task", rank.task}, {"host", rank.host}, {"pid", rank.process}, {"cpus", rank.cpus}, {"numa", rank.numa}};
}

}  // namespace gradrail::bench
