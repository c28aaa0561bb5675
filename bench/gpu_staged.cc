// The staged path between a GPU and the host, bucket by bucket as an exchange takes it, beside one plain copy of the
// same bytes in the same run: what going in pieces costs, and when the first bucket is there to be sent.
//
//   gpu_staged [--on gpu:0] [--bytes 64M] [--bucket 1M] [--seconds 1]
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/status.h"
#include "bench/harness.h"
#include "fmt/format.h"
#include "gpu/compute.h"
#include "gpu/staged_copies.h"
#include "ps/exchange_layout.h"
#include "worker/gpu_variables.h"

namespace gradrail::bench {
namespace {

struct Wanted {
  int ordinal = 0;
  uint64_t bytes = 64 << 20;
  uint64_t bucket_bytes = 1 << 20;
  double seconds = 1.0;
};

class Bench {
 public:
  explicit Bench(const Wanted& wanted) : wanted_(wanted), elements_(wanted.bytes / sizeof(float)) {}

  absl::Status prepare() {
    absl::StatusOr<std::unique_ptr<gpu::Compute>> device = gpu::open_device(wanted_.ordinal);
    if (!device.ok()) return device.status();
    device_ = *std::move(device);
    absl::StatusOr<std::unique_ptr<gpu::Memory>> block = device_->allocate(ps::device_block_bytes(elements_));
    if (!block.ok()) return block.status();
    block_ = *std::move(block);
    for (SharedMemory* memory : {&parameters_, &gradients_}) {
      absl::StatusOr<SharedMemory> made = SharedMemory::create("gradrail-bench", wanted_.bytes);
      if (!made.ok()) return made.status();
      *memory = *std::move(made);
    }
    float* const parameters = block_->as<float>();
    const worker::DeviceMemory memory{.device = device_.get(),
                                      .parameters = parameters,
                                      .gradients = parameters + ps::device_gradients_at(elements_),
                                      .bytes = ps::device_block_bytes(elements_)};
    absl::StatusOr<std::unique_ptr<worker::GpuVariables>> variables =
        worker::GpuVariables::create(memory, elements_, parameters_.span(), gradients_.span());
    if (!variables.ok()) return variables.status();
    variables_ = *std::move(variables);
    absl::StatusOr<std::unique_ptr<gpu::StagedCopies>> copies = gpu::staged_copies(*device_);
    if (!copies.ok()) return copies.status();
    copies_ = *std::move(copies);
    return check();
  }

  /// Once, and that all of it comes.
  absl::Status check() {
    auto* const values = reinterpret_cast<float*>(gradients_.data());
    for (uint64_t i = 0; i < elements_; ++i) values[i] = static_cast<float>(i % 8191);
    GRADRAIL_RETURN_IF_ERROR(variables_->upload_initial());
    std::memset(gradients_.data(), 0, gradients_.bytes());
    pieces_down();
    for (uint64_t i = 0; i < elements_; ++i) {
      if (values[i] != static_cast<float>(i % 8191)) return absl::DataLossError("what came down is not what went up");
    }
    return variables_->status();
  }

  void plain_down() {
    const float* from = block_->as<float>() + ps::device_gradients_at(elements_);
    wait(*copies_, copies_->download(gradients_.data(), from, wanted_.bytes));
  }
  void plain_up() {
    copies_->upload(block_->data(), parameters_.data(), wanted_.bytes);
    copies_->finish().IgnoreError();
  }
  void pieces_down() {
    std::vector<gpu::CopyTicket> tickets;
    for (uint64_t first = 0; first < elements_; first += bucket()) {
      tickets.push_back(variables_->download_gradients({first, std::min(bucket(), elements_ - first)}));
    }
    const TimePoint start = Clock::now();
    for (const gpu::CopyTicket ticket : tickets) {
      while (!variables_->is_done(ticket)) continue;
      if (ticket == tickets.front()) first_us_ = seconds_since(start) * 1e6;
    }
  }
  void pieces_up() {
    for (uint64_t first = 0; first < elements_; first += bucket()) {
      variables_->upload_parameters({first, std::min(bucket(), elements_ - first)});
    }
    variables_->settle().IgnoreError();
  }

  void run() {
    fmt::print("# {} on {}\n# {} bytes in buckets of {}\n", device_->name(), machine(), wanted_.bytes,
               wanted_.bucket_bytes);
    fmt::print("{:<28} {:>10} {:>10} {:>10} {:>8} {:>8}\n", "", "p50_us", "min_us", "GB/s", "share", "count");
    const double down = row("plain copy to the host", 0, [this] { plain_down(); });
    row("bucket by bucket", down, [this] { pieces_down(); });
    fmt::print("{:<28} {:>10.1f}\n", "  the first bucket after", first_us_);
    const double up = row("plain copy to the GPU", 0, [this] { plain_up(); });
    row("bucket by bucket", up, [this] { pieces_up(); });
  }
  absl::Status status() const {
    const absl::Status copied = copies_->status();
    return copied.ok() ? variables_->status() : copied;
  }

 private:
  uint64_t bucket() const { return wanted_.bucket_bytes / sizeof(float); }
  static void wait(gpu::StagedCopies& copies, gpu::CopyTicket ticket) {
    while (!copies.is_done(ticket)) continue;
  }
  double row(const char* name, double plain_us, const std::function<void()>& body) const {
    const Times times = measure(wanted_.seconds, [] {}, body);
    const std::string share = plain_us > 0 ? fmt::format("{:.1f} %", 100 * plain_us / times.p50_us) : "";
    fmt::print("{:<28} {:>10.1f} {:>10.1f} {:>10.2f} {:>8} {:>8}\n", name, times.p50_us, times.min_us,
               static_cast<double>(wanted_.bytes) / times.p50_us * 1e-3, share, times.count);
    return times.p50_us;
  }

  const Wanted wanted_;
  const uint64_t elements_;
  double first_us_ = 0.0;
  SharedMemory parameters_, gradients_;
  std::unique_ptr<gpu::Compute> device_;
  std::unique_ptr<gpu::Memory> block_;
  std::unique_ptr<gpu::StagedCopies> copies_;
  std::unique_ptr<worker::GpuVariables> variables_;
};

/// False: not understood.
bool read(int count, char** words, Wanted& wanted) {
  for (int i = 1; i + 1 < count; i += 2) {
    const std::string flag = words[i], value = words[i + 1];
    if (flag == "--on" && value.starts_with("gpu:")) {
      wanted.ordinal = std::atoi(value.c_str() + 4);
    } else if (flag == "--bytes") {
      wanted.bytes = parse_size(value);
    } else if (flag == "--bucket") {
      wanted.bucket_bytes = parse_size(value);
    } else if (flag == "--seconds") {
      wanted.seconds = std::atof(value.c_str());
    } else {
      return false;
    }
  }
  return count % 2 == 1 && wanted.bytes >= 4 && wanted.bucket_bytes >= 4 && wanted.seconds > 0;
}

}  // namespace
}  // namespace gradrail::bench

int main(int count, char** words) {
  gradrail::bench::Wanted wanted;
  if (!gradrail::bench::read(count, words, wanted)) {
    std::fprintf(stderr, "gpu_staged [--on gpu:0] [--bytes 64M] [--bucket 1M] [--seconds 1]\n");
    return 2;
  }
  gradrail::bench::Bench bench(wanted);
  absl::Status done = bench.prepare();
  if (done.ok()) {
    bench.run();
    done = bench.status();
  }
  if (!done.ok()) std::fprintf(stderr, "%s\n", std::string(done.message()).c_str());
  return done.ok() ? 0 : 1;
}
