#include "tools/gradrail/topo.h"

#include <sys/socket.h>

#include <cstdio>
#include <string>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/strings/str_split.h"
#include "base/flags/number_in.h"
#include "base/flags/text_value.h"
#include "base/read_file.h"
#include "base/status.h"
#include "fmt/format.h"
#include "tools/gradrail/topo_json.h"
#include "topology/discover/discover.h"
#include "topology/plan/plan.h"
#include "topology/views/console.h"
#include "topology/views/explain.h"
#include "topology/views/svg.h"
#include "transport/rails/rails_setting.h"

namespace gradrail::tools {
namespace {

using topology::CpuSet;
using topology::Machine;
using topology::Placement;

// Far more than any host has, and few enough for a plan that ends.
constexpr int kMaxCount = 4096;

// An empty flag would give one empty name instead of none.
std::vector<std::string> names(const std::string& list) {
  if (list.empty()) return {};
  return absl::StrSplit(list, ',');
}

topology::Towers device(const std::string& word) {
  if (word == "auto") return topology::Towers::automatic;
  return word == "gpu" ? topology::Towers::gpu : topology::Towers::cpu;
}

absl::StatusOr<topology::Request> request_of(const TopoFlags& flags) {
  // All ps tasks and workers of this host in one request: the plan shares the cores between them.
  topology::Request request;
  for (int i = 0; i < flags.ps; ++i)
    request.processes.push_back({.job = topology::Job::ps, .task_index = i, .units = flags.shards});
  for (int i = 0; i < flags.workers; ++i)
    request.processes.push_back({.job = topology::Job::worker, .task_index = i, .units = flags.towers});
  request.towers = device(flags.device);
  request.cores_per_tower = flags.cores_per_tower;
  // An empty list reserves no CPU, and parse() accepts it. For --cores an empty set would forbid all.
  GRADRAIL_ASSIGN_OR_RETURN(request.reserved, CpuSet::parse(flags.reserve));
  if (!flags.cores.empty()) {
    GRADRAIL_ASSIGN_OR_RETURN(request.cores, CpuSet::parse(flags.cores));
  }
  request.gpus = names(flags.gpu);
  request.nics = names(flags.nic);
  request.rdma_only = flags.require == "rdma";
  return request;
}

/// Requests threads like `train`: a tower on CPUs polls between two steps, one on a GPU has a thread that does.
void add_threads(const Machine& machine, topology::Request& request) {
  request.progress_threads = request.towers != topology::Towers::cpu && !machine.gpus.empty();
  request.other_threads = topology::kRestOfTheHost;
}

/// "worker/0 tower 1": the first one without a NIC; "" if each has one. The plan of --require rdma has no other NICs.
std::string without_nic(const Placement& placement) {
  for (const topology::TowerPlace& tower : placement.towers) {
    if (tower.nic < 0) return fmt::format("worker/{} tower {}", tower.task_index, tower.tower);
  }
  for (const topology::ShardPlace& shard : placement.shards) {
    if (shard.nic < 0) return fmt::format("ps/{} shard {}", shard.task_index, shard.shard);
  }
  return "";
}

/// The addresses of a saved machine are not in its file.
std::string rails_text(const TopoFlags& flags) {
  if (!flags.topology.empty()) return "";
  std::vector<transport::rails::PhysicalLink> links;
  for (const int family : {AF_INET, AF_INET6}) {
    const auto found = transport::rails::physical_links(family);
    links.insert(links.end(), found.begin(), found.end());
  }
  std::string text = "rails (--rails auto)\n";
  for (const std::string& line : transport::rails::explain_rails(links)) text += fmt::format("  {}\n", line);
  if (links.empty()) text += "  one rail: no network interface of this host belongs to a device\n";
  return text;
}

absl::Status write_svg(const std::string& path, const std::string& text) {
  const absl::Status written = write_file(path, text, WriteMode::replace);
  if (written.ok()) return written;
  return absl::NotFoundError(
      fmt::format("--svg {}; name a file in a folder that is there and yours", message_of(written)));
}

}  // namespace

void add_topo_flags(CLI::App& command, TopoFlags& flags) {
  const auto add = [&](const char* name, auto& value, const char* help) {
    return command.add_option(name, value, help)->capture_default_str()->take_last();
  };
  const NumberIn count(0, kMaxCount);
  command.option_defaults()->group("Machine");
  add("--topology", flags.topology, "hwloc XML file, or a description such as 'pack:2 [numa] core:4 pu:2'");
  add("--cores", flags.cores, "CPUs to use, such as 0-3,8; default: all")->transform(accepted_by(CpuSet::parse));
  add("--reserve", flags.reserve, "CPUs to leave free for the system")->transform(accepted_by(CpuSet::parse));
  add("--nic", flags.nic, "NICs to plan with: names, interfaces or PCI addresses; default: all");
  add("--require", flags.require, "rdma: exit code 4 unless each tower and each shard has a NIC with RDMA")
      ->check(CLI::IsMember({"rdma"}));
  command.option_defaults()->group("Cluster");
  add("--ps", flags.ps, "parameter servers on this host")->transform(count);
  add("--shards", flags.shards, "shards (threads) in each parameter server")->transform(NumberIn(1, kMaxCount));
  add("--workers", flags.workers, "worker processes on this host")->transform(count);
  add("--towers", flags.towers, "towers in each worker; 0: one for each GPU, or one on the CPUs")->transform(count);
  add("--cores-per-tower,--cores_per_tower", flags.cores_per_tower,
      "cores of a tower; 0: the free cores near it, shared with its neighbors")
      ->transform(count);
  command.option_defaults()->group("GPU");
  add("--device", flags.device, "auto, gpu (an error without a GPU) or cpu")
      ->check(CLI::IsMember({"auto", "gpu", "cpu"}));
  add("--gpu", flags.gpu, "GPUs to plan with: indices, names or PCI addresses; default: all");
  command.option_defaults()->group("Output");
  command.add_flag("--json", flags.json, "one JSON object instead of the drawing");
  command.add_flag("--explain", flags.explain, "print the reason of each choice");
  add("--svg", flags.svg, "write a picture to this file");
}

absl::StatusOr<bool> run_topo(const TopoFlags& flags) {
  // The flags are checked before hwloc scans the machine.
  GRADRAIL_ASSIGN_OR_RETURN(topology::Request wanted, request_of(flags));
  GRADRAIL_ASSIGN_OR_RETURN(const Machine machine,
                            flags.topology.empty() ? topology::discover() : topology::load(flags.topology));
  add_threads(machine, wanted);
  GRADRAIL_ASSIGN_OR_RETURN(const Placement placement, topology::plan(machine, wanted));
  if (!flags.svg.empty()) GRADRAIL_RETURN_IF_ERROR(write_svg(flags.svg, topology::draw_svg(machine, placement)));
  std::string text;
  if (flags.json) {
    text = topo_json(machine, placement);
  } else {
    text = topology::draw_tree(machine, placement) + "\n" + topology::draw_table(machine, placement);
    if (flags.explain) text += "\n" + topology::explain(machine, placement) + rails_text(flags);
  }
  // fwrite() and not fmt::print(): the text can hold braces and is written as it is.
  std::fwrite(text.data(), 1, text.size(), stdout);
  const std::string lacking = flags.require.empty() ? "" : without_nic(placement);
  if (lacking.empty()) return true;
  std::fflush(stdout);
  fmt::print(
      stderr,
      "gradrail: --require {}: {} has no NIC with RDMA; `gradrail doctor --require rdma` reports what is missing\n",
      flags.require, lacking);
  return false;
}

}  // namespace gradrail::tools
