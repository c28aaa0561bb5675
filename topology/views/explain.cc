#include "topology/views/explain.h"

#include <algorithm>
#include <set>
#include <utility>
#include <vector>

#include "fmt/format.h"
#include "topology/views/align.h"

namespace gradrail::topology {
namespace {

/// Letters of `nvidia-smi topo -m`. PKG is ours: nvidia-smi has no class between NODE and SYS.
const char* letters(PathClass path) {
  switch (path) {
    case PathClass::same_switch:
      return "PIX";
    case PathClass::same_root_port:
      return "PXB";
    case PathClass::same_root:
      return "PHB";
    case PathClass::same_numa_node:
      return "NODE";
    case PathClass::same_package:
      return "PKG";
    case PathClass::across:
      return "SYS";
    case PathClass::unknown:
      return "?";
  }
  return "?";
}

/// Large machines have many candidates that fail for one reason: those share a line.
std::vector<std::pair<std::string, std::string>> by_reason(const std::vector<Rejected>& rejected) {
  std::vector<std::pair<std::string, std::string>> lines;  // reason, names
  for (const auto& [name, why] : rejected) {
    const std::string& reason = why;  // clang 14 captures no binding
    const auto same = std::find_if(lines.begin(), lines.end(), [&](const auto& line) { return line.first == reason; });
    if (same == lines.end()) {
      lines.emplace_back(reason, name);
    } else {
      same->second += ", " + name;
    }
  }
  return lines;
}

void add_decisions(std::string& text, const std::string& occupant, const std::vector<Decision>& decisions) {
  text += occupant + "\n";
  for (const Decision& decision : decisions) {
    text += fmt::format("  {}: {}: {}\n", decision.what, decision.chosen, decision.reason);
    for (const auto& [reason, names] : by_reason(decision.rejected))
      text += fmt::format("    not {}: {}\n", names, reason);
  }
}

}  // namespace

std::string draw_paths(const Machine& machine) {
  if (machine.gpus.empty() || machine.nics.empty()) return "";
  // The table has a row for each GPU and a column for each NIC, as in nvidia-smi.
  std::vector<std::vector<std::string>> rows = {{""}};
  for (const Nic& nic : machine.nics) rows[0].push_back(nic.name);
  // Only the letters that the table has are listed: the legend stays short.
  std::set<PathClass> used;
  for (const Gpu& gpu : machine.gpus) {
    rows.push_back({fmt::format("GPU {}", gpu.index)});
    for (const Nic& nic : machine.nics) {
      const PathClass path = path_class(machine, gpu.place, nic.place);
      used.insert(path);
      rows.back().push_back(letters(path));
    }
  }
  std::string text = align_columns(rows);
  for (const PathClass path : used) text += fmt::format("  {:4} {}\n", letters(path), to_string(path));
  return text;
}

std::string explain(const Machine& machine, const Placement& placement) {
  std::string text = draw_paths(machine);
  for (const TowerPlace& tower : placement.towers)
    add_decisions(text, fmt::format("worker/{} tower {}", tower.task_index, tower.tower), tower.decisions);
  for (const ShardPlace& shard : placement.shards)
    add_decisions(text, fmt::format("ps/{} shard {}", shard.task_index, shard.shard), shard.decisions);
  return text;
}

}  // namespace gradrail::topology
