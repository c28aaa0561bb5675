// The way between a GPU and the host, bucket by bucket as an exchange takes it, beside one plain copy of the same
// bytes. Shows the cost of the pieces, and the time at which the first bucket can be sent.
#include <algorithm>
#include <cstring>
#include <vector>

#include "CLI/CLI.hpp"
#include "base/clock.h"
#include "base/flags/number_in.h"
#include "base/resource_limits.h"
#include "base/status.h"
#include "bench/driver/harness.h"
#include "bench/driver/rounds.h"
#include "bench/driver/suite.h"
#include "bench/report/isolated_figures.h"
#include "bench/suites/device_name.h"
#include "fmt/format.h"
#include "gpu/compute/compute.h"
#include "gpu/direct/staged_copies.h"
#include "ps/protocol/exchange_layout.h"
#include "ps/protocol/shard_map.h"
#include "worker/client/gpu_variables.h"

namespace gradrail::bench {
namespace {

constexpr PushFormat kPush = PushFormat::fp32;

class StagedBench {
 public:
  StagedBench(int ordinal, uint64_t bytes, uint64_t bucket_bytes)
      : ordinal_(ordinal), bytes_(bytes), bucket_(bucket_bytes / sizeof(float)), elements_(bytes / sizeof(float)) {}

  absl::Status prepare() {
    GRADRAIL_ASSIGN_OR_RETURN(device_, gpu::open_device(ordinal_));
    GRADRAIL_ASSIGN_OR_RETURN(block_, device_->allocate(ps::device_block_bytes(elements_, kPush)));
    // The memory is the same as that of a client: GpuVariables pins it, so that copies use DMA.
    for (SharedMemory* memory : {&parameters_, &gradients_}) {
      GRADRAIL_ASSIGN_OR_RETURN(SharedMemory made, SharedMemory::create("gradrail-bench", bytes_));
      *memory = std::move(made);
    }
    float* const parameters = block_->as<float>();
    const DeviceBlock memory{.ordinal = ordinal_,
                             .parameters = parameters,
                             .gradients = parameters + ps::device_gradients_at(elements_),
                             .bytes = ps::device_block_bytes(elements_, kPush)};
    GRADRAIL_ASSIGN_OR_RETURN(
        variables_, worker::GpuVariables::create(memory, elements_, kPush, parameters_.span(), gradients_.span()));
    // The plain copies have separate streams: they must not wait behind the buckets.
    GRADRAIL_ASSIGN_OR_RETURN(std::unique_ptr<gpu::StagedCopies> copies, gpu::staged_copies(*device_));
    copies_ = std::move(copies);
    return check();
  }

  /// Checks once that all data arrive.
  absl::Status check() {
    auto* const values = reinterpret_cast<float*>(gradients_.data());
    // 8191 is prime and no divisor of a bucket: a bucket in the wrong place has the wrong values.
    for (uint64_t i = 0; i < elements_; ++i) values[i] = static_cast<float>(i % 8191);
    GRADRAIL_RETURN_IF_ERROR(variables_->upload_gradients());
    // The earlier values would otherwise still be here, and a copy that does nothing would pass.
    std::memset(gradients_.data(), 0, gradients_.bytes());
    pieces_down();
    for (uint64_t i = 0; i < elements_; ++i) {
      if (values[i] != static_cast<float>(i % 8191)) return absl::DataLossError("what came down is not what went up");
    }
    return variables_->status();
  }

  void plain_down() {
    const float* from = block_->as<float>() + ps::device_gradients_at(elements_);
    wait(*copies_, copies_->download(gradients_.data(), from, bytes_));
  }
  void plain_up() {
    copies_->upload(block_->data(), parameters_.data(), bytes_);
    // The errors are sticky: status() returns them after the measurement.
    copies_->finish().IgnoreError();
  }
  void pieces_down() {
    const TimePoint start = Clock::now();
    // The order is that of an exchange: all buckets are enqueued, and each is sent when its copy has ended.
    std::vector<gpu::CopyTicket> tickets;
    for (uint64_t first = 0; first < elements_; first += bucket_) {
      tickets.push_back(variables_->download_gradients({first, std::min(bucket_, elements_ - first)}));
    }
    for (const gpu::CopyTicket ticket : tickets) {
      while (!variables_->is_done(ticket)) continue;
      if (ticket == tickets.front()) first_us_.push_back(seconds_since(start) * 1e6);
    }
  }
  void pieces_up() {
    for (uint64_t first = 0; first < elements_; first += bucket_) {
      variables_->upload_parameters({first, std::min(bucket_, elements_ - first)});
    }
    variables_->finish_transfers().IgnoreError();
  }

  std::vector<Figure> measure_all(double seconds) {
    Figure plain_down = row("plain copy to the host", seconds, [this] { this->plain_down(); });
    first_us_.clear();
    Figure down = row("to the host, bucket by bucket", seconds, [this] { pieces_down(); });
    down.more = {{"%plain", share(plain_down, down)}, {"first_us", Times::of(first_us_).p50_us}};
    Figure plain_up = row("plain copy to the GPU", seconds, [this] { this->plain_up(); });
    Figure up = row("to the GPU, bucket by bucket", seconds, [this] { pieces_up(); });
    up.more = {{"%plain", share(plain_up, up)}};
    return {plain_down, down, plain_up, up};
  }
  absl::Status status() const {
    const absl::Status copied = copies_->status();
    return copied.ok() ? variables_->status() : copied;
  }

 private:
  static void wait(gpu::StagedCopies& copies, gpu::CopyTicket ticket) {
    while (!copies.is_done(ticket)) continue;
  }
  Figure row(const char* name, double seconds, const std::function<void()>& body) const {
    Figure figure;
    figure.path = name;
    figure.bytes = bytes_;
    figure.count = elements_;
    figure.times = measure(
        seconds, [] {}, body);
    figure.alg_bytes = figure.bus_bytes = static_cast<double>(bytes_);
    return figure;
  }
  static double share(const Figure& plain, const Figure& pieces) {
    return 100 * plain.times.p50_us / pieces.times.p50_us;
  }

  const int ordinal_;
  const uint64_t bytes_;
  const uint64_t bucket_;  ///< elements
  const uint64_t elements_;
  std::vector<double> first_us_;  ///< time of each pass until the first bucket has arrived
  SharedMemory parameters_, gradients_;
  std::unique_ptr<gpu::Compute> device_;
  std::unique_ptr<gpu::Memory> block_;
  std::unique_ptr<gpu::StagedCopies> copies_;
  std::unique_ptr<worker::GpuVariables> variables_;
};

struct StagedOptions {
  std::string on = "gpu:0";
  uint32_t bucket_kib = 0;

  void add_flags(CLI::App& app) {
    remove_flags(app, {"-n", "-w", "-c", "--transport"});
    add_on_flag(app, on, "GPU of the copies to and from host memory, gpu:N", false);
    app.add_option("--bucket_kib", bucket_kib, "size of a copied unit in KiB; 0: the default of the client")
        ->transform(NumberIn(0u, kMaxBucketKib))
        ->capture_default_str();
  }
};

absl::StatusOr<std::vector<Figure>> measure_one(const Options& options, const StagedOptions& own, uint64_t bytes) {
  GRADRAIL_ASSIGN_OR_RETURN(const int ordinal, gpu_ordinal(own.on));
  StagedBench bench(
      ordinal, bytes,
      own.bucket_kib == 0 ? ps::ShardMap::default_bucket_bytes(bytes / sizeof(float), 1) : own.bucket_kib * 1024);
  GRADRAIL_RETURN_IF_ERROR(bench.prepare());
  std::vector<Figure> figures = bench.measure_all(options.seconds);
  GRADRAIL_RETURN_IF_ERROR(bench.status());
  return figures;
}

absl::StatusOr<int> run_staged_suite(const Options& options, const StagedOptions& own) {
  GRADRAIL_ASSIGN_OR_RETURN(const std::vector<uint64_t> list, sizes(options, "64M", "64M", sizeof(float)));
  GRADRAIL_RETURN_IF_ERROR(can_open(own.on));
  GRADRAIL_RETURN_IF_ERROR(
      check_available_memory(fmt::format("gradients of {} bytes: gradients and parameters need", list.back()),
                             2 * static_cast<double>(list.back()), "give a smaller size (-b, -e)"));
  Report report(options,
                fmt::format("gradrail bench staged: gradients and parameters between {} and the host", own.on));
  report.note(
      "%plain: time of the plain copy / time of all buckets. first_us: median time until the first bucket can be "
      "sent");
  report.begin(Layout::sweep);
  // Four rows in one process, each as long as another suite's only one.
  const auto measure_isolated = [&](uint64_t bytes) {
    return isolated_figures(own.on, bytes, 2 * timeout_for(options.seconds),
                            [&] { return measure_one(options, own, bytes); });
  };
  take_turns(options, list, {{own.on, measure_isolated}}, report);
  return report.finish(true);
}

}  // namespace

std::unique_ptr<Suite> new_staged_suite() { return std::make_unique<SuiteWith<StagedOptions>>(run_staged_suite); }

}  // namespace gradrail::bench
