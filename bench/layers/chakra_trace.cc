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
#include <optional>
#include <set>
#include <sstream>

#include "base/parse_number.h"
#include "base/status.h"
#include "bench/driver/harness.h"
#include "bench/layers/trace_errors.h"
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
constexpr uint64_t kLatestStart = 100'000'000'000'000'000;  // microseconds; a time since 1970 is smaller by two digits
// Microseconds, 28 hours. The sum of all nodes of a file stays below 2^64.
constexpr uint64_t kLongestNode = 100'000'000'000;
constexpr uint64_t kLastNumber = std::numeric_limits<uint64_t>::max();

struct ChakraNode {
  uint64_t start_us = 0;
  uint64_t duration_us = 0;
  uint64_t bytes = 0;  ///< of a reduction
  bool is_reduction = false;
  std::vector<uint64_t> dependencies;
};

/// 5, "5"; none for other values.
std::optional<uint64_t> count_of(const nlohmann::json& value) {
  if (value.is_number_unsigned()) return value.get<uint64_t>();
  if (!value.is_string()) return std::nullopt;
  return parse_number<uint64_t>(value.get_ref<const std::string&>());
}

/// A whole number up to `most`. The others begin the message of an error.
absl::StatusOr<uint64_t> checked_count(const nlohmann::json& value, uint64_t most, std::string_view where,
                                       std::string_view field) {
  const std::optional<uint64_t> count = count_of(value);
  if (count && *count <= most) return *count;
  return bad_field(where, field, shown(value), fmt::format("a whole number from 0 to {}", most));
}

/// A field of a node; 0 if it is missing, as in protobuf.
absl::StatusOr<uint64_t> count_at(const nlohmann::json& node, const char* field, uint64_t most,
                                  std::string_view where) {
  const auto found = node.find(field);
  return found == node.end() ? 0 : checked_count(*found, most, where, field);
}

/// The numbers of other nodes; none if the field is missing.
absl::StatusOr<std::vector<uint64_t>> dependencies_at(const nlohmann::json& node, const char* field,
                                                      std::string_view where) {
  const auto list = node.find(field);
  if (list == node.end()) return std::vector<uint64_t>();
  if (!list->is_array()) return bad_field(where, field, shown(*list), "a list of the ids of nodes");
  std::vector<uint64_t> ids;
  for (const nlohmann::json& each : *list) {
    GRADRAIL_ASSIGN_OR_RETURN(const uint64_t id,
                              checked_count(each, kLastNumber, where, fmt::format("an item of {}", field)));
    ids.push_back(id);
  }
  return ids;
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
  const std::optional<uint64_t> number = count_of(type);
  return number && std::ranges::count(kReductionNumbers, *number) > 0;
}

/// The bytes of a reduction; 0 if they are missing, as in protobuf.
absl::StatusOr<uint64_t> traced_bytes(const nlohmann::json& node, std::string_view where) {
  const nlohmann::json value = attribute(node, "comm_size");
  if (value.is_null()) return 0;
  const std::optional<uint64_t> bytes = count_of(value);
  if (bytes && *bytes <= kMostTracedBytes) return *bytes;
  return bad_field(where, "comm_size", shown(value),
                   fmt::format("a whole number of bytes from 0 to {}", kMostTracedBytes));
}

/// Shapes  where: begins the message of an error.
absl::StatusOr<ChakraNode> node_from(const nlohmann::json& json, std::string_view where,
                                     std::set<std::string>& collectives) {
  ChakraNode node;
  GRADRAIL_ASSIGN_OR_RETURN(node.start_us, count_at(json, "startTimeMicros", kLatestStart, where));
  GRADRAIL_ASSIGN_OR_RETURN(node.duration_us, count_at(json, "durationMicros", kLongestNode, where));
  GRADRAIL_ASSIGN_OR_RETURN(node.dependencies, dependencies_at(json, "dataDeps", where));
  // "ctrlDeps" names the caller of an operator, also one that the converter has dropped. Chakra's own feeder waits
  // for "dataDeps" alone.
  GRADRAIL_RETURN_IF_ERROR(dependencies_at(json, "ctrlDeps", where).status());
  if (json.at("type") != "COMM_COLL_NODE") return node;
  const nlohmann::json type = attribute(json, "comm_type");
  node.is_reduction = reduces(type);
  if (!node.is_reduction) collectives.insert(type.dump());
  if (!node.is_reduction) return node;
  GRADRAIL_ASSIGN_OR_RETURN(node.bytes, traced_bytes(json, where));
  return node;
}

struct ChakraNodes {
  std::map<uint64_t, ChakraNode> by_id;
  std::set<std::string> other_collectives;  ///< their types
};

absl::Status take_chakra_node(const nlohmann::json& json, ChakraNodes& nodes) {
  GRADRAIL_ASSIGN_OR_RETURN(const uint64_t id,
                            count_at(json, "id", kLastNumber, nth_node(nodes.by_id.size() + 1, json)));
  const std::string where = fmt::format("node {} ({})", id, shown(json.value("name", nlohmann::json())));
  GRADRAIL_ASSIGN_OR_RETURN(ChakraNode node, node_from(json, where, nodes.other_collectives));
  if (!nodes.by_id.emplace(id, std::move(node)).second)
    return bad_field(where, "id", fmt::format("{} again", id), "the number of one node");
  return absl::OkStatus();
}

absl::Status check_dependencies(const std::map<uint64_t, ChakraNode>& nodes) {
  for (const auto& [id, node] : nodes)
    for (const uint64_t before : node.dependencies)
      if (!nodes.contains(before))
        return bad_field(fmt::format("node {}", id), "an item of dataDeps", fmt::format("{}", before),
                         "the id of a node of this trace");
  return absl::OkStatus();
}

absl::StatusOr<ChakraNodes> nodes_of(std::string_view text) {
  ChakraNodes nodes;
  std::istringstream stream{std::string(text)};
  try {  // nlohmann's only way to say where the text ends to be JSON
    while (stream >> std::ws && !stream.eof()) {
      nlohmann::json json;
      stream >> json;
      if (!json.is_object()) return unknown_kind(fmt::format("JSON with {} beside objects", shown(json)));
      if (json.contains("workload_graph"))
        return absl::DataLossError(
            "a workload graph of Chakra: convert the .et file of the same run with chakra_jsonizer");
      if (!json.contains("type")) continue;  // metadata
      GRADRAIL_RETURN_IF_ERROR(take_chakra_node(json, nodes));
    }
  } catch (const nlohmann::json::exception& error) {
    return absl::DataLossError(json_error_text(error));
  }
  if (nodes.by_id.empty()) return unknown_kind("JSON objects without \"type\"");
  GRADRAIL_RETURN_IF_ERROR(check_dependencies(nodes.by_id));
  return nodes;
}

/// The start of each node if it starts when its last dependency ends. Each dependency is in `nodes`.
/// Source  Kahn, CACM 5 (1962).
absl::StatusOr<std::map<uint64_t, uint64_t>> earliest_starts(const std::map<uint64_t, ChakraNode>& nodes) {
  std::map<uint64_t, size_t> missing;
  std::map<uint64_t, std::vector<uint64_t>> followers;
  std::vector<uint64_t> ready;
  for (const auto& [id, node] : nodes) {
    for (const uint64_t before : node.dependencies) {
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
    const uint64_t elements = (node.bytes + sizeof(float) - 1) / sizeof(float);
    step.layers.push_back({elements, static_cast<double>(std::max(starts[id], first) - first)});
  }
  return step;
}

}  // namespace gradrail::bench
