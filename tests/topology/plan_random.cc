#include "tests/topology/plan_random.h"

#include <random>

#include "fmt/format.h"
#include "tests/topology/machine_builder.h"

namespace gradrail::topology {
namespace {

class Dice {
 public:
  explicit Dice(uint64_t seed) : engine_(seed) {}
  int pick(int from, int to) { return std::uniform_int_distribution<int>(from, to)(engine_); }
  bool one_in(int n) { return pick(1, n) == 1; }

 private:
  std::mt19937_64 engine_;
};

MachineBuilder random_processors(Dice& dice) {
  const Shape shape{.packages = dice.pick(1, 3),
                    .nodes_per_package = dice.pick(0, 3),
                    .cores_per_node = dice.one_in(4) ? dice.pick(1, 2) : dice.pick(1, 12),
                    .smt = dice.one_in(2) ? 1 : dice.pick(2, 4),
                    .cpu_stride = dice.one_in(4) ? dice.pick(2, 8) : 1};
  MachineBuilder builder(
      shape, dice.one_in(2) ? MachineBuilder::Numbering::siblings_last : MachineBuilder::Numbering::siblings_adjacent);
  if (shape.nodes_per_package > 0 && dice.one_in(4)) builder.package(dice.pick(1, 9), dice.pick(1, 2));
  if (shape.nodes_per_package > 0 && dice.one_in(6)) builder.memory_node(0);
  Machine& machine = builder.machine();
  if (dice.one_in(5))
    for (Core& core : machine.cores) core.efficiency = dice.pick(0, 1);
  if (dice.one_in(3)) {
    CpuSet closed;
    for (const int cpu : machine.allowed.to_vector())
      if (dice.one_in(3)) closed.insert(cpu);
    closed.erase(machine.allowed.first());
    builder.close(closed);
  }
  for (NumaNode& node : machine.numa_nodes) node.allowed = !dice.one_in(12);
  return builder;
}

/// Roots of packages, of nodes, of unknown position, and bridges anywhere below.
void grow_bridges(Dice& dice, MachineBuilder& builder) {
  const Machine& machine = builder.machine();
  const int roots = dice.pick(1, 5);
  for (int i = 0; i < roots; ++i) {
    const int packages = static_cast<int>(machine.packages.size());
    const int nodes = static_cast<int>(machine.numa_nodes.size());
    const int node = nodes > 0 && dice.one_in(2) ? dice.pick(0, nodes - 1) : -1;
    const int root = builder.root(node >= 0 ? machine.numa_nodes[node].package : dice.pick(0, packages - 1), node);
    if (dice.one_in(5)) builder.machine().bridges[root].cpus = {};
  }
  for (int i = dice.pick(0, 12); i > 0; --i) builder.bridge(dice.pick(0, static_cast<int>(machine.bridges.size()) - 1));
}

void add_devices(Dice& dice, MachineBuilder& builder, int most) {
  const auto anywhere = [&] { return dice.pick(0, static_cast<int>(builder.machine().bridges.size()) - 1); };
  const auto vendor = [&] { return dice.one_in(8) ? Vendor::amd : Vendor::nvidia; };
  const auto state = [&] {
    if (dice.one_in(5)) return PortState::down;
    return dice.one_in(4) ? PortState::unknown : PortState::active;
  };
  for (int i = dice.pick(-2, most); i > 0; --i) builder.gpu(anywhere(), vendor());
  for (int i = dice.pick(-1, most); i > 0; --i) {
    if (!builder.machine().nics.empty() && dice.one_in(4)) {
      builder.nic_port(builder.machine().nics.back().rdma, state());
    } else {
      builder.nic(anywhere(), !dice.one_in(3), state());
    }
    constexpr double kRates[] = {10, 100, 200};
    if (dice.one_in(3)) builder.machine().nics.back().ports[0].gbit_per_s = kRates[dice.pick(0, 2)];
  }
}

Request random_request(Dice& dice, const Machine& machine) {
  Request request;
  const int workers = dice.pick(0, 4), servers = dice.pick(workers == 0 ? 1 : 0, 3);
  for (int i = 0; i < servers; ++i) request.processes.push_back({Job::ps, i, dice.pick(1, 3)});
  for (int i = 0; i < workers; ++i) request.processes.push_back({Job::worker, i, dice.pick(0, 3)});
  request.towers = static_cast<Towers>(dice.pick(0, 2));
  request.cores_per_tower = dice.one_in(2) ? 0 : dice.pick(1, 6);
  request.progress_threads = !dice.one_in(3);
  request.rdma_only = dice.one_in(6);
  // The first cpu is always left, so that something is.
  const std::vector<int> cpus = machine.allowed.to_vector();
  if (dice.one_in(4)) {
    request.cores = CpuSet{cpus[0]};
    for (const int cpu : cpus)
      if (dice.one_in(2)) request.cores->insert(cpu);
  }
  for (size_t i = 1; i < cpus.size(); ++i)
    if (dice.one_in(10)) request.reserved.insert(cpus[i]);
  if (dice.one_in(5))
    for (const Gpu& gpu : machine.gpus)
      if (gpu.vendor == Vendor::nvidia && dice.one_in(2)) request.gpus.push_back(gpu.name);
  if (dice.one_in(5))
    for (const Nic& nic : machine.nics)
      if (dice.one_in(2)) request.nics.push_back(nic.name);
  return request;
}

std::string dump(const std::vector<Decision>& decisions) {
  std::string text;
  for (const Decision& decision : decisions) {
    text += fmt::format("  {}: {} ({})\n", decision.what, decision.chosen, decision.reason);
    for (const Rejected& rejected : decision.rejected)
      text += fmt::format("    {}: {}\n", rejected.name, rejected.reason);
  }
  return text;
}

}  // namespace

RandomCase random_case(uint64_t seed) {
  Dice dice(seed);
  MachineBuilder builder = random_processors(dice);
  grow_bridges(dice, builder);
  add_devices(dice, builder, 8);
  Request request = random_request(dice, builder.machine());
  return {std::move(builder.machine()), std::move(request)};
}

RandomCase small_case(uint64_t seed) {
  Dice dice(seed);
  const int packages = dice.pick(1, 2), nodes = dice.pick(1, 2);
  MachineBuilder builder({.packages = packages,
                          .nodes_per_package = nodes,
                          .cores_per_node = dice.pick(1, 16 / (packages * nodes)),
                          .smt = dice.pick(1, 2)});
  grow_bridges(dice, builder);
  add_devices(dice, builder, 4);
  Request request;
  for (int i = dice.pick(1, 4); i > 0; --i) request.processes.push_back({Job::worker, i, 0});
  if (!dice.one_in(3)) request.processes.push_back({Job::ps, 0, dice.pick(1, 2)});
  request.towers = dice.one_in(3) ? Towers::cpu : Towers::automatic;
  request.cores_per_tower = dice.one_in(2) ? 0 : dice.pick(1, 4);
  request.progress_threads = dice.one_in(2);
  request.other_threads = dice.pick(0, 1);
  if (dice.one_in(2)) {
    const std::vector<int> cpus = builder.machine().allowed.to_vector();
    request.cores = CpuSet{cpus[static_cast<size_t>(dice.pick(0, static_cast<int>(cpus.size()) - 1))]};
    for (const int cpu : cpus)
      if (dice.one_in(2)) request.cores->insert(cpu);
  }
  return {std::move(builder.machine()), std::move(request)};
}

std::string dump(const Placement& placement) {
  std::string text =
      fmt::format("{} {} {}\n", placement.oversubscribed, static_cast<int>(placement.wait), placement.wait_reason);
  for (const std::string& note : placement.notes) text += note + "\n";
  for (const TowerPlace& tower : placement.towers) {
    text += fmt::format("tower {}.{} gpu {} nic {} node {} compute {} progress {}\n{}", tower.task_index, tower.tower,
                        tower.gpu, tower.nic, tower.numa_node, tower.compute.to_string(), tower.progress.to_string(),
                        dump(tower.decisions));
  }
  for (const ShardPlace& shard : placement.shards) {
    text += fmt::format("shard {}.{} nic {} node {} cpus {}\n{}", shard.task_index, shard.shard, shard.nic,
                        shard.numa_node, shard.cpus.to_string(), dump(shard.decisions));
  }
  return text;
}

}  // namespace gradrail::topology
