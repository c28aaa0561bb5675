// How near does an update come to the speed of memory? On a GPU (or the host twin): each optimizer's update() beside a
// copy within the same memory, by turns. The fused pass is bound by the bytes it has to read and write, nothing else.
#include <algorithm>
#include <cstdio>
#include <cstring>
#include <fstream>

#include "CLI/CLI.hpp"
#include "base/clock.h"
#include "base/status.h"
#include "bench/gpu_apply_buffers.h"
#include "bench/harness.h"
#include "fmt/format.h"
#include "gpu/compute.h"
#include "nlohmann/json.hpp"
#include "ps/optimizer.h"

namespace gradrail::bench {
namespace {

constexpr int kWrongResult = 3;

struct Options {
  std::string on = "gpu:0";
  std::string size = "256M";
  int rounds = 9;
  int repeats = 20;
  std::string json;
};

struct Row {
  std::string what;
  double bytes = 0.0;  ///< that one operation has to read and write
  std::vector<double> microseconds;
  uint64_t wrong = 0;

  double median() const {
    std::vector<double> sorted = microseconds;
    std::sort(sorted.begin(), sorted.end());
    return sorted[sorted.size() / 2];
  }
  double gigabytes_per_second() const { return bytes / median() / 1e3; }
};

absl::StatusOr<std::unique_ptr<gpu::Compute>> open(const std::string& on) {
  if (on == "host") return gpu::host_compute();
  int ordinal = 0;
  if (std::sscanf(on.c_str(), "gpu:%d", &ordinal) == 1) return gpu::open_device(ordinal);
  return absl::InvalidArgumentError(fmt::format("--on {}: must be host or gpu:<number>", on));
}

/// Microseconds of one of `repeats` operations enqueued behind one another: one wait at the end, so that neither
/// launches nor waits count where the device is the slower.
absl::StatusOr<double> timed(gpu::Compute& compute, int repeats, const std::function<void()>& operation) {
  GRADRAIL_RETURN_IF_ERROR(compute.finish());
  const TimePoint start = Clock::now();
  for (int i = 0; i < repeats; ++i) operation();
  GRADRAIL_RETURN_IF_ERROR(compute.finish());
  return std::chrono::duration<double, std::micro>(Clock::now() - start).count() / repeats;
}

absl::Status measure_rounds(gpu::Compute& compute, const Options& options, const UpdateCase& c, UpdateBuffers& buffers,
                            Row& copy, Row& update) {
  const auto run_copy = [&] { buffers.copy(compute); };
  const auto run_update = [&] { buffers.update(compute, c); };
  // Clocks that idle and code that was never loaded.
  for (const auto& operation : {std::function<void()>(run_copy), std::function<void()>(run_update)}) {
    GRADRAIL_RETURN_IF_ERROR(timed(compute, options.repeats, operation).status());
  }
  for (int round = 0; round < options.rounds; ++round) {
    const absl::StatusOr<double> copied = timed(compute, options.repeats, run_copy);
    if (!copied.ok()) return copied.status();
    const absl::StatusOr<double> updated = timed(compute, options.repeats, run_update);
    if (!updated.ok()) return updated.status();
    copy.microseconds.push_back(*copied);
    update.microseconds.push_back(*updated);
  }
  return absl::OkStatus();
}

void write_json(const Options& options, const gpu::Compute& compute, size_t bytes, const Row& copy, const Row& update) {
  if (options.json.empty()) return;
  std::ofstream(options.json, std::ios::app) << nlohmann::json({{"on", compute.name()},
                                                                {"what", update.what},
                                                                {"bytes", bytes},
                                                                {"us_p50", update.median()},
                                                                {"gb_per_s", update.gigabytes_per_second()},
                                                                {"copy_gb_per_s", copy.gigabytes_per_second()},
                                                                {"wrong", update.wrong},
                                                                {"machine", machine()},
                                                                {"commit", GRADRAIL_COMMIT}})
                                             << "\n";
}

absl::StatusOr<uint64_t> run_case(gpu::Compute& compute, const Options& options, size_t bytes, const UpdateCase& c) {
  const size_t count = bytes / sizeof(float);
  absl::StatusOr<UpdateBuffers> buffers = UpdateBuffers::create(compute, c, count);
  if (!buffers.ok()) return buffers.status();
  const absl::StatusOr<uint64_t> wrong = buffers->check(compute, c);
  if (!wrong.ok()) return wrong.status();
  Row copy = {.what = "copy", .bytes = 2.0 * static_cast<double>(bytes)};
  Row update = {.what = describe(c), .bytes = bytes_per_element(c) * static_cast<double>(count), .wrong = *wrong};
  GRADRAIL_RETURN_IF_ERROR(measure_rounds(compute, options, c, *buffers, copy, update));
  fmt::print("{:<40} {:>10.1f} {:>9.1f} {:>9.1f} {:>7.1f} {:>6}\n", update.what, update.median(),
             update.gigabytes_per_second(), copy.gigabytes_per_second(),
             100.0 * update.gigabytes_per_second() / copy.gigabytes_per_second(), update.wrong);
  write_json(options, compute, bytes, copy, update);
  return *wrong;
}

absl::StatusOr<uint64_t> run_all(const Options& options) {
  const uint64_t bytes = parse_size(options.size) / 16 * 16;
  if (bytes == 0) return absl::InvalidArgumentError(fmt::format("--bytes {}: not a size such as 256M", options.size));
  const absl::StatusOr<std::unique_ptr<gpu::Compute>> compute = open(options.on);
  if (!compute.ok()) return compute.status();
  fmt::print("{}, {} of parameters, {} rounds of {}\n{}\n{:<40} {:>10} {:>9} {:>9} {:>7} {:>6}\n", (*compute)->name(),
             options.size, options.rounds, options.repeats, machine(), "update", "us", "GB/s", "copy GB/s", "% copy",
             "#wrong");
  uint64_t wrong = 0;
  for (const UpdateCase& c : update_cases()) {
    const absl::StatusOr<uint64_t> result = run_case(**compute, options, bytes, c);
    if (!result.ok()) return result.status();
    wrong += *result;
  }
  return wrong;
}

}  // namespace
}  // namespace gradrail::bench

int main(int argc, char** argv) {
  gradrail::bench::Options options;
  CLI::App app("What an update of parameters costs in GPU memory, beside a copy");
  app.add_option("--on", options.on, "gpu:<number> or host")->capture_default_str();
  app.add_option("--bytes", options.size, "of parameters, and of each gradient in fp32")->capture_default_str();
  app.add_option("--rounds", options.rounds, "copy and update take turns so often")->check(CLI::PositiveNumber);
  app.add_option("--repeats", options.repeats, "operations per turn")->check(CLI::PositiveNumber);
  app.add_option("--json", options.json, "append a line for each row");
  CLI11_PARSE(app, argc, argv);
  const absl::StatusOr<uint64_t> wrong = gradrail::bench::run_all(options);
  if (!wrong.ok()) {
    fmt::print(stderr, "gpu_apply: {}\n", gradrail::message_of(wrong.status()));
    return 1;
  }
  return *wrong == 0 ? 0 : gradrail::bench::kWrongResult;
}
