// An execution trace of PyTorch counts its nodes in the order in which they begin, and has no times:
//
//   {"schema": "1.1.1-chakra.0.0.4", "nodes": [
//     {"id": 3, "name": "ProfilerStep#4", …},
//     {"id": 255, "name": "c10d::allreduce_", "inputs": {"shapes": [[[4096]], [], …]}, …}]}
//
// Schema 1.0.1 has "input_shapes" in the node.
#include <algorithm>
#include <array>
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

// Major and minor number. The patches of both differ in fields that are not read.
constexpr std::array<std::string_view, 2> kSchemas = {"1.0", "1.1"};

struct CountedStep {
  uint64_t first = 0;  ///< a node; the step ends at the next step
  std::string name;
};

struct CountedReduction {
  uint64_t node = 0;
  uint64_t elements = 0;
};

struct ExecutionNodes {
  std::vector<CountedStep> steps;            ///< by their nodes
  std::vector<CountedReduction> reductions;  ///< by their nodes; elements above 0
  std::set<std::string> collectives;         ///< all that were found
  size_t count = 0;
};

bool is_execution_node(const nlohmann::json& value) {
  return value.contains("id") && value.contains("name") && (value.contains("inputs") || value.contains("input_shapes"));
}

absl::Status take_execution_node(const nlohmann::json& node, ExecutionNodes& nodes) {
  ++nodes.count;
  if (!node.at("id").is_number_unsigned()) {
    return bad_field(nth_node(nodes.count, node), "id", shown(node.at("id")),
                     fmt::format("a whole number from 0 to {}, without quotes", std::numeric_limits<uint64_t>::max()));
  }
  if (!node.at("name").is_string()) return absl::OkStatus();
  const std::string name = node.at("name").get<std::string>();
  const uint64_t id = node.at("id").get<uint64_t>();
  if (name.starts_with("ProfilerStep#")) nodes.steps.push_back({id, name});
  const std::string collective = collective_of_operator(name);
  if (collective.empty()) return absl::OkStatus();
  nodes.collectives.insert(collective);
  if (!is_reduction(collective)) return absl::OkStatus();
  const auto inputs = node.find("inputs");
  const bool is_flat = inputs == node.end() || !inputs->is_object();
  const nlohmann::json& holder = is_flat ? node : *inputs;
  const char* const field = is_flat ? "input_shapes" : "shapes";
  const auto shapes = holder.find(field);
  if (shapes == holder.end()) return absl::OkStatus();
  GRADRAIL_ASSIGN_OR_RETURN(
      const uint64_t elements,
      elements_of_operator(collective, *shapes, fmt::format("node {} ({})", id, shown(node.at("name"))), field));
  if (elements > 0) nodes.reductions.push_back({id, elements});
  return absl::OkStatus();
}

/// "1.1.1-chakra.0.0.4" is 1.1.
absl::Status check_schema(const nlohmann::json& schema) {
  const std::string text = schema.is_string() ? schema.get<std::string>() : "";
  for (const std::string_view each : kSchemas)
    if (text == each || text.starts_with(fmt::format("{}.", each))) return absl::OkStatus();
  return absl::DataLossError(fmt::format(
      "an execution trace of PyTorch with schema {}: schemas {} are read; record the trace with a version of "
      "PyTorch that writes one of them",
      shown(schema), fmt::join(kSchemas, " and ")));
}

absl::StatusOr<ExecutionNodes> execution_nodes_of(std::string_view text) {
  ExecutionNodes nodes;
  absl::Status schema;
  const absl::Status mistake = take_objects(text, [&](const nlohmann::json& object, absl::Status& status) {
    if (object.contains("schema") && object.contains("nodes")) schema = check_schema(object.at("schema"));
    if (!is_execution_node(object)) return false;
    status = take_execution_node(object, nodes);
    return true;
  });
  GRADRAIL_RETURN_IF_ERROR(schema);  // first: the nodes of another schema may look damaged
  GRADRAIL_RETURN_IF_ERROR(mistake);
  // A node is written when it ends.
  std::ranges::sort(nodes.steps, {}, &CountedStep::first);
  std::ranges::sort(nodes.reductions, {}, &CountedReduction::node);
  return nodes;
}

std::vector<ExchangeLoad::Layer> layers_between(const ExecutionNodes& nodes, uint64_t first, uint64_t end) {
  std::vector<ExchangeLoad::Layer> layers;
  for (const CountedReduction& each : nodes.reductions)
    if (each.node >= first && each.node < end) layers.push_back({each.elements, 0.0});
  return layers;
}

}  // namespace

absl::StatusOr<TracedStep> step_of_execution_trace(std::string_view text) {
  constexpr uint64_t kEnd = std::numeric_limits<uint64_t>::max();
  constexpr std::string_view kNoTimes = "without times, all gradients are ready at the beginning";
  GRADRAIL_ASSIGN_OR_RETURN(const ExecutionNodes nodes, execution_nodes_of(text));
  if (nodes.reductions.empty()) {
    return absl::DataLossError(
        fmt::format("an execution trace of PyTorch without gradients: looked for c10d::allreduce_, c10d::reduce_ and "
                    "c10d::…reduce_scatter… with shapes; found {} nodes, {}; trace a run with several processes",
                    nodes.count,
                    nodes.collectives.empty() ? "no collective"
                                              : fmt::format("collectives {}", fmt::join(nodes.collectives, ", "))));
  }
  std::vector<TracedStep> steps;
  for (size_t i = 0; i < nodes.steps.size(); ++i) {
    const uint64_t end = i + 1 < nodes.steps.size() ? nodes.steps[i + 1].first : kEnd;
    if (auto layers = layers_between(nodes, nodes.steps[i].first, end); !layers.empty())
      steps.push_back({nodes.steps[i].name, std::move(layers)});
  }
  if (steps.empty()) {
    return TracedStep{fmt::format("PyTorch execution trace: all of it is one step; {}", kNoTimes),
                      layers_between(nodes, 0, kEnd)};
  }
  TracedStep& middle = steps[steps.size() / 2];
  return TracedStep{fmt::format("PyTorch execution trace: {}, the middle of {} steps with reductions; {}", middle.about,
                                steps.size(), kNoTimes),
                    std::move(middle.layers)};
}

}  // namespace gradrail::bench
