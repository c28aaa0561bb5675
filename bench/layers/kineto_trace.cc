// Events of a Kineto trace that count here:
//
//   {"ph": "X", "name": "ProfilerStep#3", "ts": 1000.0, "dur": 500.0}               a step; times in microseconds
//   {… "name": "record_param_comms", "args": {"Collective name": "allreduce", "In msg nelems": 4096}}
//   {… "cat": "kernel", "name": "ncclDevKernel_…", "args": {the same}}
//   {… "name": "gloo:all_reduce", "args": {"Input Dims": [[4096]]}}                 with record_shapes=True
//
#include <algorithm>
#include <cctype>
#include <limits>
#include <set>

#include "base/status.h"
#include "bench/driver/harness.h"
#include "bench/layers/traces.h"
#include "fmt/format.h"
#include "fmt/ranges.h"
#include "nlohmann/json.hpp"

namespace gradrail::bench {
namespace {

constexpr std::string_view kStepPrefix = "ProfilerStep#";
constexpr const char* kCollective = "Collective name";
// A product of dimensions beyond it is damage. A terabyte of gradients has fewer elements.
constexpr double kMostElements = 2.5e11;

/// One collective has up to three events: its kernel, its parameters and its call. Only one kind counts.
enum class EventKind : uint8_t { kernel, parameters, call };

struct ReductionEvent {
  EventKind kind = EventKind::call;
  double start_us = 0.0;
  uint64_t elements = 0;  ///< 0: not in the trace
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
};

std::string text_at(const nlohmann::json& object, const char* name) {
  const auto found = object.find(name);
  return found != object.end() && found->is_string() ? found->get<std::string>() : "";
}

double number_at(const nlohmann::json& object, const char* name) {
  const auto found = object.find(name);
  return found != object.end() && found->is_number() ? found->get<double>() : 0.0;
}

/// "all_reduce", "allreduce", "_reduce_scatter_base", "reduce_scatter_tensor_coalesced", "reduce".
bool is_reduction(const std::string& collective) {
  std::string letters;
  for (const char c : collective)
    if (std::isalpha(static_cast<unsigned char>(c)) != 0) letters += static_cast<char>(std::tolower(c));
  return letters == "reduce" || letters.starts_with("allreduce") || letters.starts_with("reducescatter");
}

/// "gloo:all_reduce": "all_reduce". "" for other names.
std::string collective_called(const std::string& name) {
  for (const std::string_view backend : {"nccl:", "gloo:", "mpi:", "ucc:", "xccl:"})
    if (name.starts_with(backend)) return name.substr(backend.size());
  return "";
}

/// A shape [2, 3] has 6 elements; a list of shapes has their sum.
double elements_of(const nlohmann::json& dims, int depth = 0) {
  // A list of lists of tensors is the deepest that PyTorch writes.
  if (!dims.is_array() || dims.empty() || depth > 3) return 0.0;
  double sum = 0.0, product = 1.0;
  for (const nlohmann::json& each : dims) {
    sum += elements_of(each, depth + 1);
    product *= each.is_number_unsigned() ? each.get<double>() : 0.0;
  }
  return std::max(sum, product);
}

void take_event(const nlohmann::json& event, KinetoEvents& events) {
  if (text_at(event, "ph") != "X") return;
  const double start_us = number_at(event, "ts");
  events.first_us = std::min(events.first_us, start_us);
  ++events.count;
  const std::string name = text_at(event, "name"), category = text_at(event, "cat");
  const bool on_gpu = category == "gpu_user_annotation";
  if (name.starts_with(kStepPrefix)) {
    events.steps.push_back({name, start_us, start_us + number_at(event, "dur"), on_gpu});
    return;
  }
  static const nlohmann::json no_arguments = nlohmann::json::object();
  const auto found = event.find("args");
  const nlohmann::json& arguments = found != event.end() && found->is_object() ? *found : no_arguments;
  const std::string described = text_at(arguments, kCollective);
  const std::string collective = described.empty() ? collective_called(name) : described;
  // The annotation on the GPU repeats the call.
  if (collective.empty() || (described.empty() && on_gpu)) return;
  if (!is_reduction(collective)) {
    events.others.insert(collective);
    return;
  }
  const double elements = described.empty() ? elements_of(arguments.value("Input Dims", nlohmann::json::array()))
                                            : number_at(arguments, "In msg nelems");
  events.reductions.push_back(
      {.kind = described.empty()                              ? EventKind::call
               : category == "kernel" || category == "Kernel" ? EventKind::kernel
                                                              : EventKind::parameters,
       .start_us = start_us,
       .elements = elements >= 1 && elements <= kMostElements ? static_cast<uint64_t>(elements) : 0});
}

absl::StatusOr<KinetoEvents> events_of(std::string_view text) {
  KinetoEvents events;
  // Events are taken one by one and dropped: a trace of some steps has millions of them.
  const auto take = [&](int, nlohmann::json::parse_event_t what, nlohmann::json& value) {
    if (what != nlohmann::json::parse_event_t::object_end || !value.contains("ph")) return true;
    take_event(value, events);
    return false;
  };
  try {  // with an exception: it has line and column
    [[maybe_unused]] const nlohmann::json rest = nlohmann::json::parse(text, take);
  } catch (const nlohmann::json::exception& error) {
    return absl::DataLossError(json_error_text(error));
  }
  return events;
}

absl::Status no_reductions(const KinetoEvents& events) {
  return absl::DataLossError(fmt::format(
      "a Kineto trace without all-reduce, reduce-scatter or reduce: looked for record_param_comms, nccl:…, gloo:…; "
      "found {} events, {} steps, {}; trace a step of a run with several processes",
      events.count, events.steps.size(),
      events.others.empty() ? "no collective" : fmt::format("collectives {}", fmt::join(events.others, ", "))));
}

/// The events of one kind that have sizes: the kernels if possible, since their times are those of the GPU.
std::vector<ReductionEvent> reductions_of_one_kind(const KinetoEvents& events) {
  std::vector<ReductionEvent> chosen;
  for (const EventKind kind : {EventKind::kernel, EventKind::parameters, EventKind::call}) {
    for (const ReductionEvent& each : events.reductions)
      if (each.kind == kind && each.elements > 0) chosen.push_back(each);
    if (!chosen.empty()) break;
  }
  return chosen;
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
  if (reductions.empty()) {
    return absl::DataLossError(
        fmt::format("a Kineto trace with {} reductions, none with a size (In msg nelems or Input Dims): record it with "
                    "profile(record_shapes=True)",
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
