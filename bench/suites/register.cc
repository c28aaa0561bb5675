// Cost of registering memory, by size and by whether the pages exist: page tables are walked and pages pinned.
#include <cstring>

#include "base/memory.h"
#include "base/resource_limits.h"
#include "base/status.h"
#include "bench/driver/rounds.h"
#include "bench/driver/suite.h"
#include "bench/driver/transports.h"
#include "bench/report/isolated_figures.h"
#include "fmt/format.h"
#include "transport/registry.h"

namespace gradrail::bench {
namespace {

// A registration of 64 MiB of untouched pages takes many milliseconds, that of one page takes microseconds. A median
// needs three of them, and more than a thousand do not change it.
constexpr uint64_t kFewest = 3;
constexpr uint64_t kMost = 1000;

struct Series {
  const char* name;
  bool touched;
  std::vector<double> micros = {};
};

double micros_since(TimePoint start) { return static_cast<double>(nanoseconds_since(start)) * 1e-3; }

absl::Status measure_once(transport::Context& context, uint64_t bytes, Series& series, std::vector<double>& ends) {
  // New memory each time: a library that caches registrations would otherwise be fast from the second one on.
  GRADRAIL_ASSIGN_OR_RETURN(SharedMemory memory, SharedMemory::create("bench-register", bytes));
  // The kernel gives a page at its first write: without this, the registration has to allocate it.
  if (series.touched) std::memset(memory.data(), 1, bytes);
  const TimePoint start = Clock::now();
  auto region = context.register_memory(memory.span(), transport::Access::remote_write);
  series.micros.push_back(micros_since(start));
  if (!region.ok()) return region.status();
  const TimePoint registered = Clock::now();
  region->reset();
  ends.push_back(micros_since(registered));
  return absl::OkStatus();
}

Figure figure_of(const std::string& path, uint64_t bytes, std::vector<double>& micros) {
  Figure figure;
  figure.path = path;
  figure.bytes = figure.count = bytes;
  figure.type = "byte";
  figure.times = Times::of(micros);
  figure.alg_bytes = figure.bus_bytes = static_cast<double>(bytes);
  return figure;
}

absl::StatusOr<std::vector<Figure>> measure_registration(const TransportChoice& choice, const Options& options,
                                                         uint64_t bytes) {
  GRADRAIL_ASSIGN_OR_RETURN(const transport::Transport* const found, transport::find_transport(choice.name));
  GRADRAIL_ASSIGN_OR_RETURN(const auto context, found->open({.bind_host = options.bind_host,
                                                             .rdma_only = choice.rdma_only,
                                                             .ofi_provider = choice.ofi_provider}));
  Series series[] = {{.name = "fresh pages", .touched = false}, {.name = "touched pages", .touched = true}};
  std::vector<double> ends;
  const TimePoint start = Clock::now();
  for (uint64_t i = 0; i < kMost; ++i) {
    if (options.iterations > 0 ? i >= options.iterations : i >= kFewest && seconds_since(start) > options.seconds)
      break;
    // Both series take turns, so that a slow moment of the machine affects both.
    for (Series& one : series) GRADRAIL_RETURN_IF_ERROR(measure_once(*context, bytes, one, ends));
  }
  std::vector<Figure> figures;
  for (Series& one : series) figures.push_back(figure_of(choice.name + " register, " + one.name, bytes, one.micros));
  figures.push_back(figure_of(choice.name + " deregister", bytes, ends));
  return figures;
}

std::vector<Figure> measure_isolated(const TransportChoice& choice, const Options& options, uint64_t bytes) {
  if (!choice.unusable.empty()) return {not_measured(choice.name, bytes, choice.unusable)};
  return isolated_figures(choice.name, bytes, timeout_for(options.seconds),
                          [&] { return measure_registration(choice, options, bytes); });
}

}  // namespace

absl::StatusOr<int> run_register_suite(const Options& options) {
  GRADRAIL_ASSIGN_OR_RETURN(const std::vector<uint64_t> list, sizes(options, "4K", "64M", 1));
  GRADRAIL_RETURN_IF_ERROR(check_available_memory(fmt::format("a region of {} bytes: it needs", list.back()),
                                                  static_cast<double>(list.back()), "give a smaller size (-b, -e)"));
  GRADRAIL_ASSIGN_OR_RETURN(const std::vector<TransportChoice> choices,
                            choose_transports(options, !options.transports.empty()));
  Report report(options, "gradrail bench register: cost of memory registration for a transport");
  report.note("fresh pages: not touched yet. ofi registers again at each connection; this part is not measured");
  report.begin(Layout::sweep);
  std::vector<Contestant> contestants;
  for (const TransportChoice& choice : choices)
    contestants.push_back({choice.name, [&](uint64_t bytes) { return measure_isolated(choice, options, bytes); }});
  take_turns(options, list, contestants, report);
  return report.finish(!options.transports.empty());
}

}  // namespace gradrail::bench
