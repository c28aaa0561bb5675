// This suite compares updates, and the packing of pushes and answers, with the speed of memory. Each is measured beside
// copies of the same working set, by turns.
#include <cmath>

#include "base/clock.h"
#include "base/random.h"
#include "base/resource_limits.h"
#include "base/status.h"
#include "bench/driver/memory_speed.h"
#include "bench/driver/rounds.h"
#include "bench/driver/suite.h"
#include "bench/report/isolated_figures.h"
#include "bench/suites/device_name.h"
#include "bench/suites/gpu_apply_buffers.h"
#include "fmt/format.h"
#include "gpu/compute/compute.h"
#include "ps/optimizer/optimizer.h"
#include "ps/optimizer/returns.h"
#include "ps/protocol/optimizer_settings.h"
#include "ps/protocol/push_format.h"
#include "ps/protocol/return_format.h"

namespace gradrail::bench {
namespace {

// A launch and a wait cost some microseconds each, as much as a small update: twenty operations share one wait.
constexpr int kRepeats = 20;  // on a device: enqueued behind one another, so that launches and waits do not count

/// A bucket of gradients of 0.25.
std::vector<float> gradient_in(PushFormat format, size_t count) {
  std::vector<float> gradient(count, 0.25f);
  if (format == PushFormat::fp32) return gradient;
  std::vector<float> rest(count), packed((ps::packed_bytes(count, format) + sizeof(float) - 1) / sizeof(float));
  ps::pack(format, gradient, rest.data(), packed.data());
  return packed;
}

/// ps::apply over memory of this process: what a shard in host memory does.
class HostUpdate {
 public:
  // No value is 0: the state of adam would decay to subnormal numbers, which processors handle slowly.
  HostUpdate(const UpdateCase& c, size_t count) : case_(c), parameters_(count, 1.0f) {
    for (int i = 0; i < ps::state_vectors(kind()); ++i) state_[i].assign(count, 0.5f);
    for (size_t i = 0; i < c.gradients; ++i) gradients_.push_back(gradient_in(c.format, count));
    for (size_t i = 0; i < c.targets; ++i) targets_.emplace_back(count, 0.0f);
    for (const auto& gradient : gradients_) gradient_pointers_.push_back(gradient.data());
    for (auto& target : targets_) target_pointers_.push_back(target.data());
  }
  void run() {
    ps::apply({.kind = kind()}, {.count = parameters_.size(),
                                 .parameters = parameters_.data(),
                                 .state = {state_[0].data(), state_[1].data()},
                                 .gradients = gradient_pointers_,
                                 .format = case_.format,
                                 .targets = target_pointers_,
                                 .update_index = ++updates_});
  }

 private:
  OptimizerKind kind() const { return static_cast<OptimizerKind>(case_.rule); }

  const UpdateCase case_;
  std::vector<float> parameters_, state_[2];
  std::vector<std::vector<float>> gradients_, targets_;
  std::vector<const float*> gradient_pointers_;
  std::vector<float*> target_pointers_;
  uint64_t updates_ = 0;
};

/// ps::pack over memory of this process: what a worker does before it pushes.
class Packing {
 public:
  Packing(PushFormat format, size_t count)
      : format_(format), gradient_(count), rest_(count), packed_(ps::packed_bytes(count, format)) {
    // Blocks differ, and no element is rounded as its neighbors are. topk finds the largest elements at any place.
    Random random(1);
    for (float& value : gradient_) value = static_cast<float>(random.normal());
    run();
    // The remainder after the first push is the part that the push has left out.
    error_ = norm(rest_) / norm(gradient_);
  }
  /// The norm of the rest that one push leaves, divided by the norm of the gradient.
  double error() const { return error_; }
  void run() { ps::pack(format_, gradient_, rest_.data(), packed_.data()); }

 private:
  static double norm(const std::vector<float>& values) {
    double sum = 0.0;
    for (const double value : values) sum += value * value;
    return std::sqrt(sum);
  }

  const PushFormat format_;
  double error_ = 0.0;
  std::vector<float> gradient_, rest_;
  std::vector<std::byte> packed_;
};

std::string describe_packing(PushFormat format) { return fmt::format("pack {}", push_format_name(format)); }

/// Gradient and rest are read, rest and packed gradient written.
double bytes_per_packed_element(PushFormat format) { return 3 * sizeof(float) + gradient_bytes(format); }

/// The packing of an answer at a shard, and its unpacking at a worker. Every second element has changed.
class Returning {
 public:
  Returning(ReturnFormat format, bool packs, size_t count)
      : format_(format),
        packs_(packs),
        held_(count),
        stamps_(count),
        packed_(ps::return_region_bytes(1, count, format)) {
    for (const float first : {1.0f, 2.0f}) {
      std::vector<float>& values = values_.emplace_back(count);
      // Multiplied: neighbors with a pattern of 2 would let the processor predict which ones have changed.
      for (size_t i = 0; i < count; ++i) values[i] = (i * i * 2654435761u >> 20 & 1) != 0 ? first : 3.0f;
    }
    run_pack();
    run_pack();
  }
  void run() { packs_ ? run_pack() : run_unpack(); }

 private:
  /// A pass changes what the pass before it has left.
  void run_pack() {
    const std::vector<float>& fresh = values_[turn_++ % 2];
    if (format_ == ReturnFormat::bf16) return ps::round_to_bf16(fresh, reinterpret_cast<uint16_t*>(packed_.data()));
    // All passes have one stamp: each changes half of the elements, which are those of all passes.
    ps::stamp_changes(fresh, 1, held_.data(), stamps_.data());
    ps::pack_delta(held_, stamps_.data(), 0, packed_.data());
  }
  void run_unpack() {
    if (format_ == ReturnFormat::bf16)
      ps::widen_bf16(reinterpret_cast<const uint16_t*>(packed_.data()), absl::MakeSpan(values_[0]));
    else
      ps::unpack_delta(packed_.data(), held_.data(), absl::MakeSpan(values_[0]));
  }

  const ReturnFormat format_;
  const bool packs_;
  size_t turn_ = 0;
  std::vector<std::vector<float>> values_;
  std::vector<uint16_t> held_, stamps_;
  std::vector<std::byte> packed_;
};

std::string describe_returning(ReturnFormat format, bool packs) {
  return fmt::format("{} return {}", packs ? "pack" : "unpack", return_format_name(format));
}

/// bf16: values and packed elements. delta: also masks and half the elements in place of all, and those that are held:
/// read, and written. The shard reads and writes stamps as well, and reads both again.
double bytes_per_returned_element(ReturnFormat format, bool packs) {
  const double packed = format == ReturnFormat::bf16 ? 2.0 : 1.0 + 1.0 / 8 + (packs ? 6 : 2) * 2.0;
  return sizeof(float) + packed;
}

std::vector<double> time_for(double seconds, uint64_t iterations, const std::function<void()>& pass) {
  std::vector<double> micros;
  // The first pass warms caches and page tables up; `clear` keeps its capacity for the second.
  for (const double budget : {seconds / 10, seconds}) {
    micros.clear();
    const TimePoint start = Clock::now();
    // The number is at least five: a median of updates that take longer than the budget.
    while (iterations > 0 ? micros.size() < iterations : micros.size() < 5 || seconds_since(start) < budget) {
      const TimePoint begin = Clock::now();
      pass();
      micros.push_back(static_cast<double>(nanoseconds_since(begin)) * 1e-3);
    }
  }
  return micros;
}

Figure figure_of(const std::string& path, double element_bytes, uint64_t bytes, std::vector<double>& micros,
                 double bound) {
  Figure figure;
  figure.path = path;
  figure.bytes = bytes;
  figure.count = bytes / sizeof(float);
  figure.times = Times::of(micros);
  figure.alg_bytes = static_cast<double>(bytes);
  // algbw is the speed for a user (parameters, or gradients in fp32, per time). busbw is the traffic: only it has a
  // bound.
  figure.bus_bytes = element_bytes * static_cast<double>(figure.count);
  figure.more = {{"bound_GB/s", bound}, {"%bound", bound > 0 ? 100 * figure.bus_gb_per_s() / bound : 0.0}};
  return figure;
}

/// Halves of the bound's time before and after: the machine may change its speed in between.
Figure measure_host(const std::string& path, double element_bytes, const Options& options, uint64_t bytes,
                    const std::function<void()>& pass) {
  // A working set of equal size is in the same level of the caches, or beyond them all.
  const uint64_t count = bytes / sizeof(float);
  MemoryProbe probe(static_cast<size_t>(element_bytes * static_cast<double>(count)));
  const double before = probe.measure(options.seconds / 4).best();
  std::vector<double> micros = time_for(options.seconds, options.iterations, pass);
  const double after = probe.measure(options.seconds / 4).best();
  // A bound is what the machine can reach, so that the better half counts.
  return figure_of(path, element_bytes, bytes, micros, std::max(before, after));
}

// Two waits frame all repeats: operations are only enqueued, and finish() detects their end.
absl::StatusOr<double> per_operation(gpu::Compute& compute, const std::function<void()>& operation) {
  GRADRAIL_RETURN_IF_ERROR(compute.finish());
  const TimePoint start = Clock::now();
  for (int i = 0; i < kRepeats; ++i) operation();
  GRADRAIL_RETURN_IF_ERROR(compute.finish());
  return static_cast<double>(nanoseconds_since(start)) * 1e-3 / kRepeats;
}

absl::StatusOr<Figure> measure_device(gpu::Compute& compute, const UpdateCase& c, const Options& options,
                                      uint64_t bytes) {
  GRADRAIL_ASSIGN_OR_RETURN(UpdateBuffers buffers, UpdateBuffers::create(compute, c, bytes / sizeof(float)));
  // The check precedes the measurement: the timed updates change the parameters, and only the first result is known.
  GRADRAIL_ASSIGN_OR_RETURN(const uint64_t wrong, options.check ? buffers.check(compute, c) : 0);
  std::vector<double> updates, copies;
  const TimePoint start = Clock::now();
  // The first turn warms up: clocks that idle, code that was never loaded.
  for (int turn = 0; turn < 4 || seconds_since(start) < options.seconds; ++turn) {
    // Copy and update alternate: a change of the clock rate of the GPU affects both.
    GRADRAIL_ASSIGN_OR_RETURN(const double copied, per_operation(compute, [&] { buffers.copy(compute); }));
    GRADRAIL_ASSIGN_OR_RETURN(const double updated, per_operation(compute, [&] { buffers.update(compute, c); }));
    if (turn == 0) continue;
    copies.push_back(copied);
    updates.push_back(updated);
  }
  // A copy reads and writes each byte; bytes per microsecond, times 1e-3, are 10^9 bytes per second.
  const double copy_us = Times::of(copies).p50_us;
  Figure figure =
      figure_of(describe(c), bytes_per_element(c), bytes, updates, 2.0 * static_cast<double>(bytes) / copy_us * 1e-3);
  figure.wrong = wrong;
  return figure;
}

Figure measure_update(const UpdateCase& c, const Options& options, uint64_t bytes) {
  HostUpdate update(c, bytes / sizeof(float));
  return measure_host(describe(c), bytes_per_element(c), options, bytes, [&] { update.run(); });
}

absl::StatusOr<Figure> measure_packing(PushFormat format, const Options& options, uint64_t bytes) {
  Packing packing(format, bytes / sizeof(float));
  Figure figure =
      measure_host(describe_packing(format), bytes_per_packed_element(format), options, bytes, [&] { packing.run(); });
  figure.more.emplace_back("bytes_per_element", gradient_bytes(format));
  figure.more.emplace_back("relative_error", packing.error());
  return figure;
}

std::vector<UpdateCase> all_cases() {
  std::vector<UpdateCase> cases = update_cases();
  for (const UpdateCase& c : format_cases()) cases.push_back(c);
  return cases;
}

/// The memory of the largest case, with the arrays of the bound beside it: those hold as many bytes as a pass moves.
double most_bytes_per_element() {
  double most = 0;
  for (const UpdateCase& c : all_cases()) {
    const int vectors = 1 + ps::state_vectors(static_cast<OptimizerKind>(c.rule)) + static_cast<int>(c.targets);
    const double own =
        vectors * static_cast<double>(sizeof(float)) + static_cast<double>(c.gradients) * gradient_bytes(c.format);
    most = std::max(most, own + bytes_per_element(c));
  }
  return most;
}

using Measure = std::function<absl::StatusOr<Figure>(uint64_t bytes)>;

Contestant isolated(const std::string& path, const Options& options, const Measure& measure) {
  return {path, [=, timeout = timeout_for(options.seconds)](uint64_t bytes) {
            return isolated_figures(path, bytes, timeout, [&]() -> absl::StatusOr<std::vector<Figure>> {
              GRADRAIL_ASSIGN_OR_RETURN(const Figure figure, measure(bytes));
              return std::vector<Figure>{figure};
            });
          }};
}

/// Contestants in this process: a start of the driver takes a second, and CUDA's profiler does not follow a fork. A GPU
/// packs on its stream, as a part of the exchange: `exchange --on gpu:N` measures it there.
std::vector<Contestant> device_contestants(gpu::Compute& compute, const Options& options) {
  std::vector<Contestant> contestants;
  for (const UpdateCase& c : all_cases()) {
    if (!ps::is_for_gpus(c.format)) continue;
    contestants.push_back({describe(c), [c, &compute, &options](uint64_t bytes) -> std::vector<Figure> {
                             const absl::StatusOr<Figure> figure = measure_device(compute, c, options, bytes);
                             if (figure.ok()) return {*figure};
                             return {not_measured(describe(c), bytes, std::string(message_of(figure.status())))};
                           }});
  }
  return contestants;
}

std::vector<Contestant> host_contestants(const Options& options) {
  std::vector<Contestant> contestants;
  for (const UpdateCase& c : all_cases()) {
    contestants.push_back(
        isolated(describe(c), options, [c, &options](uint64_t bytes) { return measure_update(c, options, bytes); }));
  }
  for (const PushFormat format : kPackedFormats) {
    contestants.push_back(isolated(describe_packing(format), options, [format, &options](uint64_t bytes) {
      return measure_packing(format, options, bytes);
    }));
  }
  for (const ReturnFormat format : {ReturnFormat::bf16, ReturnFormat::delta}) {
    for (const bool packs : {true, false}) {
      contestants.push_back(
          isolated(describe_returning(format, packs), options, [format, packs, &options](uint64_t bytes) {
            Returning returning(format, packs, bytes / sizeof(float));
            return measure_host(describe_returning(format, packs), bytes_per_returned_element(format, packs), options,
                                bytes, [&] { returning.run(); });
          }));
    }
  }
  return contestants;
}

struct ApplyOptions {
  std::string on = "host";

  void add_flags(CLI::App& app) {
    remove_flags(app, {"-w", "--transport"});
    add_on_flag(app, on, "host, or gpu:N", true);
  }
};

absl::StatusOr<int> run_apply_suite(const Options& options, const ApplyOptions& own) {
  const bool on_host = own.on == "host";
  // The sizes range from the MNIST model (79,510 parameters) to a size beyond the caches, which are larger on a GPU.
  GRADRAIL_ASSIGN_OR_RETURN(const std::vector<uint64_t> list, sizes(options, "318040", on_host ? "64M" : "256M", 8));
  // The checks are here, not in the table of flags: each flag has an effect for the other value of --on.
  if (on_host && !options.check)
    return absl::InvalidArgumentError("-c 0: only the results of a GPU are verified; leave -c out");
  if (!on_host && options.iterations > 0)
    return absl::InvalidArgumentError("-n: the time limits the updates on a GPU; use --seconds");
  if (on_host) {
    GRADRAIL_RETURN_IF_ERROR(check_available_memory(
        fmt::format("parameters of {} bytes: the largest update needs", list.back()),
        most_bytes_per_element() * static_cast<double>(list.back()) / sizeof(float), "give a smaller size (-b, -e)"));
  }
  std::unique_ptr<gpu::Compute> compute;
  if (!on_host) {
    GRADRAIL_ASSIGN_OR_RETURN(compute, open_compute(own.on));
  }
  Report report(options, fmt::format("gradrail bench apply: updates on {}", own.on));
  report.note("busbw: bytes that an operation must read and write / time. size: bytes of the parameters in fp32");
  report.note(
      on_host ? "bound: fastest of copy, triad and scale over the same bytes with one thread, measured before and after"
              : "bound: a copy within the same memory, measured in turn with the update");
  report.begin(Layout::sweep);
  take_turns(options, list, on_host ? host_contestants(options) : device_contestants(*compute, options), report);
  return report.finish(true);
}

}  // namespace

std::unique_ptr<Suite> new_apply_suite() { return std::make_unique<SuiteWith<ApplyOptions>>(run_apply_suite); }

}  // namespace gradrail::bench
