#include "tools/gradrail/topo_json.h"

#include "nlohmann/json.hpp"

namespace gradrail::tools {
namespace {

using nlohmann::json;
using topology::Machine;

// Negative indexes mean "none": null differs from node 0 for every reader.
json node_number(const Machine& machine, int node) {
  return node < 0 ? json() : json(machine.numa_nodes[node].os_index);
}

json package_number(const Machine& machine, int package) {
  return package < 0 ? json() : json(machine.packages[package].os_index);
}

json nic_name(const Machine& machine, int nic) { return nic < 0 ? json() : json(machine.nics[nic].name); }

/// `null` for the places of devices that have none.
json place_json(const Machine& machine, const topology::PciPlace& place) {
  return {{"pci", place.bridge < 0 ? json() : json(place.address.to_string())},
          {"numa_node", node_number(machine, place.numa_node)},
          {"package", package_number(machine, place.package)},
          {"near_cpus", place.cpus.to_string()}};
}

json numa_json(const Machine& machine) {
  json nodes = json::array();
  for (const topology::NumaNode& node : machine.numa_nodes) {
    nodes.push_back({{"number", node.os_index},
                     {"package", package_number(machine, node.package)},
                     {"cpus", node.cpus.to_string()},
                     {"memory_bytes", node.memory_bytes},
                     {"allowed", node.allowed}});
  }
  return nodes;
}

json cores_json(const Machine& machine) {
  json cores = json::array();
  for (const topology::Core& core : machine.cores) {
    cores.push_back({{"package", package_number(machine, core.package)},
                     {"numa_node", node_number(machine, core.numa_node)},
                     {"cpus", core.cpus},
                     {"allowed", core.allowed}});
  }
  return cores;
}

json gpus_json(const Machine& machine) {
  json gpus = json::array();
  for (const topology::Gpu& gpu : machine.gpus) {
    // A class for each pair of GPU and NIC, from one common switch to the link between packages.
    json paths = json::object();
    for (const topology::Nic& nic : machine.nics)
      paths[nic.name] = to_string(path_class(machine, gpu.place, nic.place));
    json entry = place_json(machine, gpu.place);
    entry.update({{"index", gpu.index},
                  {"name", gpu.name},
                  {"vendor", to_string(gpu.vendor)},
                  {"model", gpu.model},
                  {"uuid", gpu.uuid},
                  {"paths", paths}});
    gpus.push_back(entry);
  }
  return gpus;
}

json nics_json(const Machine& machine) {
  json nics = json::array();
  for (const topology::Nic& nic : machine.nics) {
    json ports = json::array();
    for (const topology::NicPort& port : nic.ports)
      ports.push_back({{"number", port.number}, {"state", to_string(port.state)}, {"gbit_per_s", port.gbit_per_s}});
    json entry = place_json(machine, nic.place);
    entry.update({{"name", nic.name},
                  {"interface", nic.interface},
                  {"rdma", nic.rdma},
                  {"link_layer", nic.infiniband ? "InfiniBand" : "Ethernet"},
                  {"usable", nic.usable()},
                  {"ports", ports}});
    nics.push_back(entry);
  }
  return nics;
}

json decisions_json(const std::vector<topology::Decision>& decisions) {
  json list = json::array();
  for (const topology::Decision& decision : decisions) {
    json rejected = json::array();
    for (const topology::Rejected& other : decision.rejected)
      rejected.push_back({{"name", other.name}, {"reason", other.reason}});
    list.push_back(
        {{"what", decision.what}, {"chosen", decision.chosen}, {"reason", decision.reason}, {"rejected", rejected}});
  }
  return list;
}

json towers_json(const Machine& machine, const topology::Placement& placement) {
  json towers = json::array();
  for (const topology::TowerPlace& tower : placement.towers) {
    towers.push_back({{"task_index", tower.task_index},
                      {"tower", tower.tower},
                      {"gpu", tower.gpu < 0 ? json() : json(machine.gpus[tower.gpu].index)},
                      {"nic", nic_name(machine, tower.nic)},
                      {"path", tower.path.has_value() ? json(to_string(*tower.path)) : json()},
                      {"numa_node", node_number(machine, tower.numa_node)},
                      {"cpus", tower.compute.to_string()},
                      {"progress_cpus", tower.progress.to_string()},
                      {"decisions", decisions_json(tower.decisions)}});
  }
  return towers;
}

json shards_json(const Machine& machine, const topology::Placement& placement) {
  json shards = json::array();
  for (const topology::ShardPlace& shard : placement.shards) {
    shards.push_back({{"task_index", shard.task_index},
                      {"shard", shard.shard},
                      {"nic", nic_name(machine, shard.nic)},
                      {"numa_node", node_number(machine, shard.numa_node)},
                      {"cpus", shard.cpus.to_string()},
                      {"decisions", decisions_json(shard.decisions)}});
  }
  return shards;
}

}  // namespace

std::string topo_json(const Machine& machine, const topology::Placement& placement) {
  // The numbers of the system, not those of this program: they agree with lstopo and numactl.
  json packages = json::array();
  for (const topology::Package& package : machine.packages)
    packages.push_back({{"number", package.os_index}, {"model", package.model}});
  const json whole = {
      {"version", 1},
      {"machine",
       {{"name", machine.name},
        {"source", machine.source},
        {"live", machine.live},
        {"packages", packages},
        {"numa_nodes", numa_json(machine)},
        {"cores", cores_json(machine)},
        {"allowed_cpus", machine.allowed.to_string()},
        {"gpus", gpus_json(machine)},
        {"nics", nics_json(machine)},
        {"notes", machine.notes}}},
      {"placement",
       {{"towers", towers_json(machine, placement)},
        {"shards", shards_json(machine, placement)},
        // The name is part of version 1 of this output.
        {"crowded", placement.oversubscribed},
        {"wait", placement.wait == topology::SpinMode::spin ? "spin" : "adapt"},
        {"wait_reason", placement.wait_reason},
        {"notes", placement.notes}}},
  };
  // Files supply the names: bytes that are not UTF-8 are replaced, and cause no exception.
  return whole.dump(2, ' ', false, json::error_handler_t::replace) + "\n";
}

}  // namespace gradrail::tools
