// A Chakra trace in JSON: an object with metadata, then one for each node. protobuf writes 64-bit numbers as text and
// leaves out zeros:
//
//   {"version": "0.0.4"}
//   {"id": "7", "name": "backward", "type": "COMP_NODE", "durationMicros": "120", "dataDeps": ["6"]}
//   {"id": "8", "type": "COMM_COLL_NODE", "dataDeps": ["7"],
//    "attr": [{"name": "comm_type", "int64Val": "0"}, {"name": "comm_size", "int64Val": "4096"}]}   bytes
//
// Source  et_def.proto of MLCommons Chakra.
#include <algorithm>
#include <array>
#include <limits>
#include <map>
#include <set>
#include <sstream>

#include "base/parse_number.h"
#include "base/status.h"
#include "bench/driver/harness.h"
#include "bench/layers/traces.h"
#include "fmt/format.h"
#include "fmt/ranges.h"
#include "nlohmann/json.hpp"

namespace gradrail::bench {
namespace {

// CollectiveCommType: all-reduce, reduce, reduce-scatter, reduce-scatter of blocks.
constexpr std::array<uint64_t, 4> kReductionNumbers = {0, 1, 7, 8};
constexpr std::array<std::string_view, 4> kReductionNames = {"ALL_REDUCE", "REDUCE", "REDUCE_SCATTER",
                                                             "REDUCE_SCATTER_BLOCK"};
constexpr uint64_t kMostTracedBytes = 1'000'000'000'000;
constexpr uint64_t kMostTracedMicros = 1'000'000'000'000'000;  // a time since 1970 in microseconds is larger by two

struct ChakraNode {
  uint64_t start_us = 0;
  uint64_t duration_us = 0;
  uint64_t bytes = 0;  ///< of a reduction
  bool is_reduction = false;
  std::vector<uint64_t> dependencies;
};

/// 5, "5"; 0 if it is missing, as in protobuf.
uint64_t count_of(const nlohmann::json& value) {
  if (value.is_number_unsigned()) return value.get<uint64_t>();
  if (!value.is_string()) return 0;
  return parse_number<uint64_t>(value.get_ref<const std::string&>()).value_or(0);
}

uint64_t count_at(const nlohmann::json& object, const char* name) {
  const auto found = object.find(name);
  return found == object.end() ? 0 : count_of(*found);
}

/// The value of an attribute; null: missing. Its field depends on the type: "int64Val", "stringVal".
nlohmann::json attribute(const nlohmann::json& node, std::string_view name) {
  const auto attributes = node.find("attr");
  if (attributes == node.end() || !attributes->is_array()) return nullptr;
  for (const nlohmann::json& each : *attributes) {
    if (!each.is_object() || each.value("name", nlohmann::json()) != name) continue;
    for (const auto& [field, value] : each.items())
      if (field.ends_with("Val")) return value;
  }
  return nullptr;
}

bool reduces(const nlohmann::json& type) {
  if (type.is_null()) return false;
  if (type.is_string() && std::ranges::count(kReductionNames, type.get_ref<const std::string&>()) > 0) return true;
  const bool is_number =
      type.is_number_unsigned() || (type.is_string() && parse_number<uint64_t>(type.get_ref<const std::string&>()));
  return is_number && std::ranges::count(kReductionNumbers, count_of(type)) > 0;
}

ChakraNode node_from(const nlohmann::json& json, std::set<std::string>& collectives) {
  ChakraNode node{.start_us = std::min(count_at(json, "startTimeMicros"), kMostTracedMicros * 100),
                  .duration_us = std::min(count_at(json, "durationMicros"), kMostTracedMicros)};
  for (const char* field : {"dataDeps", "ctrlDeps"}) {
    const auto list = json.find(field);
    if (list == json.end() || !list->is_array()) continue;
    for (const nlohmann::json& id : *list) node.dependencies.push_back(count_of(id));
  }
  if (json.at("type") != "COMM_COLL_NODE") return node;
  const nlohmann::json type = attribute(json, "comm_type");
  node.is_reduction = reduces(type);
  if (!node.is_reduction) collectives.insert(type.dump());
  if (node.is_reduction) node.bytes = count_of(attribute(json, "comm_size"));
  return node;
}

struct ChakraNodes {
  std::map<uint64_t, ChakraNode> by_id;
  std::set<std::string> other_collectives;  ///< their types
};

absl::StatusOr<ChakraNodes> nodes_of(std::string_view text) {
  ChakraNodes nodes;
  std::istringstream stream{std::string(text)};
  try {  // nlohmann's only way to say where the text ends to be JSON
    while (stream >> std::ws && !stream.eof()) {
      nlohmann::json json;
      stream >> json;
      if (!json.is_object()) return absl::DataLossError("neither a Kineto nor a Chakra trace");
      if (json.contains("nodes") && json.contains("schema")) {
        return absl::DataLossError(
            "an execution trace of PyTorch: convert it with chakra_trace_link, chakra_converter and chakra_jsonizer");
      }
      if (!json.contains("type")) continue;  // metadata
      nodes.by_id[count_at(json, "id")] = node_from(json, nodes.other_collectives);
    }
  } catch (const nlohmann::json::exception& error) {
    return absl::DataLossError(json_error_text(error));
  }
  return nodes;
}

/// The start of each node if it starts when its last dependency ends. Source  Kahn, CACM 5 (1962).
absl::StatusOr<std::map<uint64_t, uint64_t>> earliest_starts(const std::map<uint64_t, ChakraNode>& nodes) {
  std::map<uint64_t, size_t> missing;
  std::map<uint64_t, std::vector<uint64_t>> followers;
  std::vector<uint64_t> ready;
  for (const auto& [id, node] : nodes) {
    for (const uint64_t before : node.dependencies) {
      // The converter drops nodes, and keeps their numbers in the lists of others.
      if (!nodes.contains(before)) continue;
      ++missing[id];
      followers[before].push_back(id);
    }
    if (!missing.contains(id)) ready.push_back(id);
  }
  std::map<uint64_t, uint64_t> starts;
  size_t done = 0;
  for (; !ready.empty(); ++done) {
    const uint64_t id = ready.back();
    ready.pop_back();
    const ChakraNode& node = nodes.at(id);
    // The replayed exchange takes the place of a reduction.
    const uint64_t end = starts[id] + (node.is_reduction ? 0 : node.duration_us);
    for (const uint64_t next : followers[id]) {
      starts[next] = std::max(starts[next], end);
      if (--missing[next] == 0) ready.push_back(next);
    }
  }
  if (done < nodes.size()) return absl::DataLossError("a Chakra trace with dependencies in a circle");
  return starts;
}

}  // namespace

absl::StatusOr<TracedStep> step_of_chakra(std::string_view text) {
  GRADRAIL_ASSIGN_OR_RETURN(const ChakraNodes nodes, nodes_of(text));
  const auto is_sized = [](const auto& entry) { return entry.second.bytes > 0; };
  const auto sized = std::ranges::count_if(nodes.by_id, is_sized);
  if (sized == 0) {
    return absl::DataLossError(fmt::format(
        "a Chakra trace without gradients: looked for COMM_COLL_NODE with comm_type ALL_REDUCE, REDUCE or "
        "REDUCE_SCATTER and a comm_size above 0; found {} nodes, {}",
        nodes.by_id.size(),
        nodes.other_collectives.empty() ? "no other collective"
                                        : fmt::format("comm_type {}", fmt::join(nodes.other_collectives, ", "))));
  }
  TracedStep step;
  std::map<uint64_t, uint64_t> starts;
  uint64_t first = 0;
  if (std::ranges::any_of(nodes.by_id, [](const auto& entry) { return entry.second.start_us > 0; })) {
    step.about = "Chakra trace, by its start times";
    first = std::numeric_limits<uint64_t>::max();
    for (const auto& [id, node] : nodes.by_id) {
      starts[id] = node.start_us;
      // Nodes without times are annotations.
      if (node.start_us > 0 || node.duration_us > 0) first = std::min(first, node.start_us);
    }
  } else {
    step.about = "Chakra trace, by its dependencies and durations";
    GRADRAIL_ASSIGN_OR_RETURN(starts, earliest_starts(nodes.by_id));
  }
  for (const auto& [id, node] : nodes.by_id) {
    if (node.bytes == 0) continue;
    // The type of the elements is not in the trace.
    const uint64_t elements = (std::min(node.bytes, kMostTracedBytes) + sizeof(float) - 1) / sizeof(float);
    step.layers.push_back({elements, static_cast<double>(std::max(starts[id], first) - first)});
  }
  return step;
}

}  // namespace gradrail::bench
