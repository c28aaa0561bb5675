// Events of a Kineto trace that count here:
//
//   {"ph": "X", "name": "ProfilerStep#3", "ts": 1000.0, "dur": 500.0}               a step; times in microseconds
//   {… "name": "record_param_comms", "args": {"Collective name": "allreduce", "In msg nelems": 4096}}
//   {… "cat": "kernel", "name": "ncclDevKernel_…", "args": {the same}}
//   {… "name": "c10d::allreduce_", "args": {"Input Dims": [[[4096]], [], …]}}       with record_shapes=True
//   {… "name": "gloo:all_reduce", "args": {"Input Dims": [[4096]]}}                 the same
//
#include <algorithm>
#include <limits>
#include <set>

#include "base/status.h"
#include "bench/layers/collectives.h"
#include "bench/layers/trace_errors.h"
#include "bench/layers/traces.h"
#include "fmt/format.h"
#include "fmt/ranges.h"
#include "nlohmann/json.hpp"

namespace gradrail::bench {
namespace {

constexpr std::string_view kStepPrefix = "ProfilerStep#";
constexpr std::string_view kGpuAnnotation = "gpu_user_annotation";
constexpr const char* kCollective = "Collective name";
constexpr const char* kElements = "In msg nelems";
constexpr const char* kDimensions = "Input Dims";

/// One collective has up to four events. Only one kind counts. A task is the last choice, since it may begin later:
/// Gloo has few threads, and a task waits for one.
enum class EventKind : uint8_t { kernel, parameters, call, task };

struct ReductionEvent {
  EventKind kind = EventKind::task;
  double start_us = 0.0;
  uint64_t elements = 0;  ///< 0: not in the trace, or an empty tensor
};

struct StepEvent {
  std::string name;
  double start_us = 0.0;
  double end_us = 0.0;
  bool on_gpu = false;
};

struct KinetoEvents {
  std::vector<ReductionEvent> reductions;
  std::vector<StepEvent> steps;
  std::set<std::string> others;  ///< collectives that reduce nothing
  double first_us = std::numeric_limits<double>::infinity();
  size_t count = 0;
  size_t empty = 0;  ///< reductions with a number of elements that is 0
};

std::string text_at(const nlohmann::json& object, const char* name) {
  const auto found = object.find(name);
  return found != object.end() && found->is_string() ? found->get<std::string>() : "";
}

/// An event as errors name it.
std::string event_name(const nlohmann::json& event, size_t number) {
  const auto value = [&](const char* field) {
    return event.contains(field) ? shown(event.at(field)) : std::string("missing");
  };
  return fmt::format("event {} of those with ph X (name {}, ts {})", number, value("name"), value("ts"));
}

/// The field of an event in microseconds. number: of the event, for errors.
absl::StatusOr<double> micros_at(const nlohmann::json& event, const char* field, double least, size_t number) {
  const auto found = event.find(field);
  if (found != event.end() && found->is_number() && found->get<double>() >= least) return found->get<double>();
  return bad_field(event_name(event, number), field, found == event.end() ? "missing" : shown(*found),
                   fmt::format("a number of microseconds{}, without quotes", least == 0 ? " from 0" : ""));
}

/// "gloo:all_reduce": "all_reduce". "" for other names.
std::string collective_of_task(const std::string& name) {
  for (const std::string_view backend : {"nccl:", "gloo:", "mpi:", "ucc:", "xccl:"})
    if (name.starts_with(backend)) return name.substr(backend.size());
  return "";
}

/// The reduction of an event, or none.
struct DescribedEvent {
  EventKind kind = EventKind::task;
  std::string collective;  ///< "": no collective
};

DescribedEvent described(const std::string& name, const std::string& category, const nlohmann::json& arguments) {
  if (const std::string collective = text_at(arguments, kCollective); !collective.empty()) {
    const bool is_kernel = category == "kernel" || category == "Kernel";
    return {is_kernel ? EventKind::kernel : EventKind::parameters, collective};
  }
  if (const std::string collective = collective_of_operator(name); !collective.empty())
    return {EventKind::call, collective};
  // The annotation on the GPU repeats that of the host.
  return {EventKind::task, category == kGpuAnnotation ? "" : collective_of_task(name)};
}

/// 0: not in the trace, or an empty tensor.
absl::StatusOr<uint64_t> elements_of_event(const DescribedEvent& event, const nlohmann::json& arguments,
                                           std::string_view where) {
  const bool has_number = event.kind == EventKind::kernel || event.kind == EventKind::parameters;
  const char* const field = has_number ? kElements : kDimensions;
  const auto found = arguments.find(field);
  if (found == arguments.end()) return 0;
  if (has_number) return element_count(*found, where, field);
  return event.kind == EventKind::call ? elements_of_operator(event.collective, *found, where, field)
                                       : elements_of(*found, where, field);
}

absl::Status take_event(const nlohmann::json& event, KinetoEvents& events) {
  if (text_at(event, "ph") != "X") return absl::OkStatus();
  ++events.count;
  constexpr double kAny = std::numeric_limits<double>::lowest();
  GRADRAIL_ASSIGN_OR_RETURN(const double start_us, micros_at(event, "ts", kAny, events.count));
  events.first_us = std::min(events.first_us, start_us);
  const std::string name = text_at(event, "name"), category = text_at(event, "cat");
  if (name.starts_with(kStepPrefix)) {
    GRADRAIL_ASSIGN_OR_RETURN(const double duration_us, micros_at(event, "dur", 0, events.count));
    events.steps.push_back({name, start_us, start_us + duration_us, category == kGpuAnnotation});
    return absl::OkStatus();
  }
  static const nlohmann::json no_arguments = nlohmann::json::object();
  const auto found = event.find("args");
  const nlohmann::json& arguments = found != event.end() && found->is_object() ? *found : no_arguments;
  const DescribedEvent about = described(name, category, arguments);
  if (about.collective.empty()) return absl::OkStatus();
  if (!is_reduction(about.collective)) {
    events.others.insert(about.collective);
    return absl::OkStatus();
  }
  GRADRAIL_ASSIGN_OR_RETURN(const uint64_t elements,
                            elements_of_event(about, arguments, event_name(event, events.count)));
  if (elements == 0 && arguments.contains(kElements)) ++events.empty;
  events.reductions.push_back({about.kind, start_us, elements});
  return absl::OkStatus();
}

absl::StatusOr<KinetoEvents> events_of(std::string_view text) {
  KinetoEvents events;
  GRADRAIL_RETURN_IF_ERROR(take_objects(text, [&](const nlohmann::json& object, absl::Status& status) {
    if (!object.contains("ph")) return false;
    status = take_event(object, events);
    return true;
  }));
  return events;
}

absl::Status no_reductions(const KinetoEvents& events) {
  return absl::DataLossError(fmt::format(
      "a Kineto trace without all-reduce, reduce-scatter or reduce: looked for record_param_comms, c10d::…, nccl:…, "
      "gloo:…; "
      "found {} events, {} steps, {}; trace a step of a run with several processes",
      events.count, events.steps.size(),
      events.others.empty() ? "no collective" : fmt::format("collectives {}", fmt::join(events.others, ", "))));
}

/// The events of the first kind that have sizes, all of them if possible: earlier versions of PyTorch write
/// the shapes of some calls only.
std::vector<ReductionEvent> reductions_of_one_kind(const KinetoEvents& events) {
  std::vector<ReductionEvent> some_sized;
  for (const EventKind kind : {EventKind::kernel, EventKind::parameters, EventKind::call, EventKind::task}) {
    std::vector<ReductionEvent> sized;
    size_t count = 0;
    for (const ReductionEvent& each : events.reductions) {
      if (each.kind != kind) continue;
      ++count;
      if (each.elements > 0) sized.push_back(each);
    }
    if (!sized.empty() && sized.size() == count) return sized;
    if (some_sized.empty()) some_sized = std::move(sized);
  }
  return some_sized;
}

/// Annotations on the GPU frame the kernels, which run later than their calls.
std::vector<StepEvent> steps_around(const KinetoEvents& events, EventKind kind) {
  for (const bool on_gpu : {kind == EventKind::kernel, false}) {
    std::vector<StepEvent> steps;
    for (const StepEvent& each : events.steps)
      if (each.on_gpu == on_gpu) steps.push_back(each);
    if (!steps.empty()) return steps;
  }
  return {};
}

std::vector<ExchangeLoad::Layer> layers_in(const StepEvent& step, const std::vector<ReductionEvent>& reductions) {
  std::vector<ExchangeLoad::Layer> layers;
  for (const ReductionEvent& each : reductions)
    if (each.start_us >= step.start_us && each.start_us < step.end_us)
      layers.push_back({each.elements, each.start_us - step.start_us});
  return layers;
}

}  // namespace

absl::StatusOr<TracedStep> step_of_kineto(std::string_view text) {
  GRADRAIL_ASSIGN_OR_RETURN(const KinetoEvents events, events_of(text));
  if (events.reductions.empty()) return no_reductions(events);
  const std::vector<ReductionEvent> reductions = reductions_of_one_kind(events);
  if (reductions.empty() && events.empty == events.reductions.size()) {
    return absl::DataLossError(
        fmt::format("a Kineto trace with {} events of reductions, all with {} 0: trace a step that reduces gradients",
                    events.empty, kElements));
  }
  if (reductions.empty()) {
    return absl::DataLossError(fmt::format(
        "a Kineto trace with {} events of reductions, none with a size (In msg nelems or Input Dims): record "
        "it with profile(record_shapes=True), in a PyTorch with torch.profiler.kineto_available()",
        events.reductions.size()));
  }
  const std::vector<StepEvent> steps = steps_around(events, reductions.front().kind);
  if (steps.empty()) {
    const StepEvent whole{"", events.first_us, std::numeric_limits<double>::infinity()};
    return TracedStep{"Kineto trace without ProfilerStep#N: all of it is one step", layers_in(whole, reductions)};
  }
  std::vector<std::pair<StepEvent, std::vector<ExchangeLoad::Layer>>> with_reductions;
  for (const StepEvent& step : steps)
    if (auto layers = layers_in(step, reductions); !layers.empty()) with_reductions.emplace_back(step, layers);
  if (with_reductions.empty()) {
    return absl::DataLossError(fmt::format("a Kineto trace with {} reductions, all outside of its {} steps ({} …)",
                                           reductions.size(), steps.size(), steps.front().name));
  }
  std::stable_sort(with_reductions.begin(), with_reductions.end(), [](const auto& a, const auto& b) {
    return a.first.end_us - a.first.start_us < b.first.end_us - b.first.start_us;
  });
  auto& [step, layers] = with_reductions[with_reductions.size() / 2];
  return TracedStep{
      fmt::format("Kineto trace: {}, the median of {} steps with reductions", step.name, with_reductions.size()),
      std::move(layers)};
}

}  // namespace gradrail::bench
