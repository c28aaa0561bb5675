#include "topology/views/console.h"

#include <algorithm>

#include "fmt/format.h"
#include "topology/views/align.h"
#include "topology/views/outline.h"

namespace gradrail::topology {
namespace {

/// The cores of a box with equal text share a line: "6 cores, cpus 0-5,48-53: worker/0 tower 1". A machine has hundreds
/// of cores, and most of them differ in their numbers only.
struct Run {
  int count = 0;
  CpuSet cpus;
};

std::string names(const Outline& outline, const std::vector<int>& occupants) {
  std::string text;
  for (const int occupant : occupants) text += (text.empty() ? "" : ", ") + outline.occupants[occupant].name;
  return text;
}

std::string occupants_of(const Outline& outline, const CoreSlot& slot) {
  if (!slot.open) return "closed to this process";
  if (slot.occupants.empty()) return "idle";
  return names(outline, slot.occupants) + (slot.progress ? ", progress thread" : "");
}

class Tree {
 public:
  explicit Tree(const Outline& outline) : outline_(outline) {}

  std::string draw() {
    add("", outline_.machine, "");
    return std::move(text_);
  }

 private:
  void add(const std::string& indent, const Box& box, const std::string& branch) {
    text_ += indent + branch + box.title;
    if (!box.detail.empty()) text_ += fmt::format(" ({})", box.detail);
    if (!box.occupants.empty()) text_ += "  ◀ " + names(outline_, box.occupants);
    text_ += "\n";
    // There is no line to continue below the last branch; the root has no branch.
    const std::string below = indent + (branch.empty() ? "" : branch == "└─ " ? "   " : "│  ");
    const std::vector<std::string> cores = core_lines(box);
    // Cores before boxes: the corner belongs to the last line of either kind.
    for (size_t i = 0; i < cores.size(); ++i)
      text_ += below + (i + 1 == cores.size() && box.inside.empty() ? "└─ " : "├─ ") + cores[i] + "\n";
    for (size_t i = 0; i < box.inside.size(); ++i)
      add(below, box.inside[i], i + 1 == box.inside.size() ? "└─ " : "├─ ");
  }

  std::vector<std::string> core_lines(const Box& box) {
    std::vector<std::pair<std::string, Run>> runs;  // sorted by appearance
    for (const CoreSlot& slot : box.slots) {
      const std::string what = occupants_of(outline_, slot);
      // A linear search: a box has a few different texts, and their order of appearance stays.
      auto run = std::find_if(runs.begin(), runs.end(), [&](const auto& entry) { return entry.first == what; });
      if (run == runs.end()) run = runs.insert(runs.end(), {what, {}});
      ++run->second.count;
      for (const int cpu : slot.cpus) run->second.cpus.insert(cpu);
    }
    std::vector<std::string> lines;
    lines.reserve(runs.size());
    for (const auto& [what, run] : runs) {
      lines.push_back(fmt::format("{} core{}, cpu{} {}: {}", run.count, run.count == 1 ? "" : "s",
                                  run.cpus.count() == 1 ? "" : "s", run.cpus.to_string(), what));
    }
    return lines;
  }

  const Outline& outline_;
  std::string text_;
};

std::string or_dash(const std::string& text) { return text.empty() ? "-" : text; }

std::string node_name(const Machine& machine, int node) {
  return node < 0 ? "-" : fmt::format("{}", machine.numa_nodes[node].os_index);
}

std::string nic_name(const Machine& machine, int nic) { return nic < 0 ? "-" : machine.nics[nic].name; }

}  // namespace

std::string draw_tree(const Machine& machine, const Placement& placement) {
  const Outline outline = make_outline(machine, placement);
  return Tree(outline).draw();
}

std::string draw_table(const Machine& machine, const Placement& placement) {
  std::vector<std::vector<std::string>> rows = {{"task", "GPU", "NIC", "path", "NUMA", "cpus", "progress"}};
  for (const TowerPlace& tower : placement.towers) {
    // The PCI address, too: lstopo and nvidia-smi number GPUs differently.
    const Gpu* gpu = tower.gpu < 0 ? nullptr : &machine.gpus[tower.gpu];
    rows.push_back({fmt::format("worker/{} tower {}", tower.task_index, tower.tower),
                    gpu == nullptr ? "-" : fmt::format("{} {}", gpu->index, gpu->place.address.to_string()),
                    nic_name(machine, tower.nic), tower.path.has_value() ? to_string(*tower.path) : "-",
                    node_name(machine, tower.numa_node), tower.compute.to_string(),
                    or_dash(tower.progress.to_string())});
  }
  for (const ShardPlace& shard : placement.shards) {
    rows.push_back({fmt::format("ps/{} shard {}", shard.task_index, shard.shard), "-", nic_name(machine, shard.nic),
                    "-", node_name(machine, shard.numa_node), shard.cpus.to_string(), "-"});
  }
  std::string text = align_columns(rows);
  text += fmt::format("waiting: {} ({})\n", placement.wait == SpinMode::spin ? "spin" : "adapt", placement.wait_reason);
  for (const std::string& note : placement.notes) {
    // A host that does not spin in each wait has the reason as a note for the log; the line above shows it already.
    if (note != placement.wait_reason) text += fmt::format("note: {}\n", note);
  }
  for (const std::string& note : machine.notes) text += fmt::format("note: {}\n", note);
  return text;
}

}  // namespace gradrail::topology
