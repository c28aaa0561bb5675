#include "topology/plan/explain.h"

#include "fmt/format.h"

namespace gradrail::topology::planning {
namespace {

/// "1 core", "2 cores".
std::string count_of(int count, const char* what) { return fmt::format("{} {}{}", count, what, count == 1 ? "" : "s"); }

void explain_wait(const ThreadDemand& demand, Placement& placement) {
  std::string busy = count_of(demand.threads, "busy thread");
  if (demand.others > 0) busy += fmt::format(" and {} busy now and then", demand.others);
  // Rule 5 of plan.h, and siblings: they share the execution units of a core, so that spinning is not free there.
  placement.wait = demand.oversubscribed() || demand.siblings > 0 ? SpinMode::adapt : SpinMode::spin;
  if (demand.oversubscribed()) {
    placement.wait_reason = fmt::format("{} share {} of {}: a spinning thread takes time from threads with work", busy,
                                        count_of(demand.cpus, "cpu"), count_of(demand.cores, "core"));
  } else if (demand.siblings > 0) {
    placement.wait_reason = fmt::format("{} on {} use {}: a spinning sibling slows the thread beside it", busy,
                                        count_of(demand.cores, "core"), count_of(demand.siblings, "hardware sibling"));
  } else {
    placement.wait_reason =
        fmt::format("{} on {}: each has one of its own", busy, count_of(demand.cores, "usable core"));
  }
}

void note_shortage(const Grounds& grounds, Placement& placement) {
  const ThreadDemand& demand = grounds.demand;
  if (placement.wait == SpinMode::adapt) placement.notes.push_back(placement.wait_reason);
  const int wanted = grounds.request.cores_per_tower;
  int short_of = 0;
  for (const TowerPlace& tower : placement.towers)
    // No tower of an oversubscribed host has separate cores, and the note above states this.
    short_of += !demand.oversubscribed() && tower.compute.count() < wanted;
  if (short_of > 0) {
    placement.notes.push_back(fmt::format("{} of {} towers have fewer than the {} asked for: {} in all", short_of,
                                          placement.towers.size(), count_of(wanted, "core"),
                                          count_of(demand.cores, "usable core")));
  }
}

}  // namespace

void explain(Grounds grounds, Placement& placement) {
  // Both tables are inverses of the placement: reasons name the other users of a device.
  grounds.tower_of_gpu.assign(grounds.machine.gpus.size(), -1);
  for (size_t t = 0; t < placement.towers.size(); ++t) {
    if (placement.towers[t].gpu >= 0) grounds.tower_of_gpu[placement.towers[t].gpu] = static_cast<int>(t);
    if (placement.towers[t].nic >= 0) grounds.towers_on_nics.add(placement.towers[t].nic);
  }
  explain_wait(grounds.demand, placement);
  note_shortage(grounds, placement);
  for (size_t t = 0; t < placement.towers.size(); ++t) {
    TowerPlace& tower = placement.towers[t];
    tower.decisions = {explain_gpu(grounds, placement, tower), explain_nic(grounds, tower, grounds.localities[t]),
                       explain_cores(grounds, tower, grounds.localities[t]), explain_memory(grounds, tower)};
  }
  for (ShardPlace& shard : placement.shards) shard.decisions.push_back(explain_cores(grounds, shard));
}

}  // namespace gradrail::topology::planning
