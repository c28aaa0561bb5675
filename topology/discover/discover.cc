#include "topology/discover/discover.h"

#include <dlfcn.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>

#include "base/read_file.h"
#include "base/status.h"
#include "fmt/format.h"
#include "topology/discover/hwloc.h"
#include "topology/discover/live.h"
#include "topology/discover/xml.h"

namespace gradrail::topology {
namespace {

constexpr size_t kMaxFileBytes = size_t{64} << 20;  // the largest machines make some MB
constexpr const char* kExample = "such as \"pack:2 [numa] core:4 pu:2\"";

absl::Status with_source(const absl::Status& status, const std::string& name) {
  return {status.code(), fmt::format("topology {}: {}", name, message_of(status))};
}

std::string words_of_errno() { return std::strerror(errno); }

/// Cpus outside of what the process was given (taskset, a batch system) are closed to us as those outside of its
/// cgroup.
void restrict_to_process(hwloc_topology_t topology, Machine& machine) {
  hwloc_bitmap_t bound = hwloc_bitmap_alloc();
  if (bound != nullptr && hwloc_get_cpubind(topology, bound, HWLOC_CPUBIND_PROCESS) == 0) {
    machine.allowed = machine.allowed & to_cpu_set(bound);
  } else {
    machine.notes.push_back(
        fmt::format("the kernel does not say which cpus this process may use: {}", words_of_errno()));
  }
  hwloc_bitmap_free(bound);
}

}  // namespace

absl::StatusOr<Topology> new_topology() {
  hwloc_topology_t raw = nullptr;
  if (hwloc_topology_init(&raw) != 0)
    return absl::InternalError(fmt::format("hwloc_topology_init: {}", words_of_errno()));
  Topology topology(raw);
  // Cpus that are closed to this process are included: a placement must distinguish "not ours" from "not there".
  hwloc_topology_set_flags(raw, HWLOC_TOPOLOGY_FLAG_INCLUDE_DISALLOWED);
  hwloc_topology_set_io_types_filter(raw, HWLOC_TYPE_FILTER_KEEP_IMPORTANT);
  // GPU libraries may name devices that hwloc cannot attach to the PCI tree.
  hwloc_topology_set_type_filter(raw, HWLOC_OBJ_OS_DEVICE, HWLOC_TYPE_FILTER_KEEP_ALL);
  // No part of the decision, and much of the time.
  hwloc_topology_set_type_filter(raw, HWLOC_OBJ_MISC, HWLOC_TYPE_FILTER_KEEP_NONE);
  return topology;
}

absl::Status read_machine(hwloc_topology_t topology, Machine& machine) {
  machine.allowed = to_cpu_set(hwloc_topology_get_allowed_cpuset(topology));
  if (hwloc_topology_is_thissystem(topology) != 0) restrict_to_process(topology, machine);
  GRADRAIL_RETURN_IF_ERROR(read_processors(topology, machine));
  read_devices(topology, machine);
  return absl::OkStatus();
}

namespace {

absl::StatusOr<Machine> read(hwloc_topology_t topology, const std::string& source) {
  Machine machine;
  machine.source = source;
  machine.live = hwloc_topology_is_thissystem(topology) != 0;
  GRADRAIL_RETURN_IF_ERROR(read_machine(topology, machine));
  if (machine.live) add_live_facts("/sys", machine);
  return machine;
}

/// libpciaccess never frees the device names that it reads (half a megabyte), and hwloc unloads it after each
/// discovery. This reference keeps it loaded, so that the names are read once.
void keep_pci_names() { dlopen("libpciaccess.so.0", RTLD_LAZY | RTLD_NOLOAD | RTLD_NODELETE); }

absl::StatusOr<Machine> read_live() {
  GRADRAIL_ASSIGN_OR_RETURN(Topology topology, new_topology());
  // The start-up of OpenCL and X11 takes long, starts threads, and adds no information beyond PCI.
  for (const char* component : {"opencl", "gl"})
    hwloc_topology_set_components(topology.get(), HWLOC_TOPOLOGY_COMPONENTS_FLAG_BLACKLIST, component);
  if (hwloc_topology_load(topology.get()) != 0)
    return absl::InternalError(fmt::format("hwloc cannot read this machine: {} (is /sys there?)", words_of_errno()));
  keep_pci_names();
  return read(topology.get(), "this machine");
}

/// Begins of the levels of a description: at its start, behind a space, behind the text in brackets or parentheses
/// beside a level. hwloc searches for the first that closes, too.
std::vector<size_t> level_starts(const std::string& description) {
  std::vector<size_t> starts;
  bool begins = true;
  for (size_t i = 0; i < description.size(); ++i) {
    const char c = description[i];
    if (c == '(' || c == '[') i = std::min(description.find(c == '(' ? ')' : ']', i), description.size());
    const bool separates = c == '(' || c == '[' || c == ' ' || c == '\n';
    if (begins && !separates) starts.push_back(i);
    begins = separates;
  }
  return starts;
}

/// Limits that hwloc does not check itself. hwloc builds any number of objects, so cpus are counted first (an upper
/// bound: a level without a number counts as one). hwloc refuses types of some levels only, and then leaks memory
/// (2.9).
absl::Status check_levels(const std::string& description) {
  constexpr uint64_t kMaxCpus = 16384;  // four times the largest machine there is; hwloc takes a second
  // hwloc compares each new object with its neighbors: 16384 below one object take more than a minute.
  constexpr uint64_t kMaxChildren = 1024;
  constexpr size_t kMaxLength = 4096;
  constexpr ptrdiff_t kMaxBeside = 16;
  auto too_large = absl::InvalidArgumentError(
      fmt::format("a description of more than {} cpus, {} objects in one, {} characters or {} things in brackets",
                  kMaxCpus, kMaxChildren, kMaxLength, kMaxBeside));
  if (description.size() > kMaxLength || std::count(description.begin(), description.end(), '[') > kMaxBeside)
    return too_large;
  const auto is_digit = [](char c) { return c >= '0' && c <= '9'; };
  uint64_t cpus = 1;
  size_t untyped = 0;
  const std::vector<size_t> starts = level_starts(description);
  for (const size_t start : starts) {
    untyped += is_digit(description[start]) ? 1 : 0;
    const size_t end = description.find_first_of(" \n()[]", start);
    const size_t colon = description.find(':', start);
    const size_t number = colon < end ? colon + 1 : start;
    if (!is_digit(description[number])) continue;
    const uint64_t children = std::max<uint64_t>(std::strtoull(description.c_str() + number, nullptr, 0), 1);
    if (children > kMaxChildren || cpus * children > kMaxCpus) return too_large;
    cpus *= children;
  }
  if (untyped == 0 || untyped == starts.size()) return absl::OkStatus();
  return absl::InvalidArgumentError(fmt::format("either all levels have a type or none has ({})", kExample));
}

/// A name that no description uses.
bool looks_like_file(const std::string& source) {
  return source.find('/') != std::string::npos || source.ends_with(".xml");
}

}  // namespace

absl::StatusOr<Machine> from_xml(const std::string& xml, const std::string& name) {
  absl::StatusOr<Machine> machine = import_xml(xml);
  if (!machine.ok()) return with_source(machine.status(), name);
  machine->source = name;
  return machine;
}

absl::StatusOr<Machine> from_synthetic(const std::string& description) {
  GRADRAIL_ASSIGN_OR_RETURN(Topology topology, new_topology());
  const std::string name = fmt::format("\"{}\"", printable(description.c_str()));
  if (const absl::Status status = check_levels(description); !status.ok()) return with_source(status, name);
  if (hwloc_topology_set_synthetic(topology.get(), description.c_str()) != 0 ||
      hwloc_topology_load(topology.get()) != 0) {
    return with_source(absl::InvalidArgumentError(fmt::format("no synthetic description of hwloc ({})", kExample)),
                       name);
  }
  absl::StatusOr<Machine> machine = read(topology.get(), description);
  return machine.ok() ? machine : with_source(machine.status(), name);
}

absl::StatusOr<Machine> load(const std::string& source) {
  struct stat facts = {};
  if (::stat(source.c_str(), &facts) == 0 || errno != ENOENT || looks_like_file(source)) {
    const absl::StatusOr<std::string> text = read_file(source, kMaxFileBytes);
    if (text.ok()) return from_xml(*text, source);
    return absl::Status(text.status().code(), fmt::format("topology {}", message_of(text.status())));
  }
  absl::StatusOr<Machine> machine = from_synthetic(source);
  if (machine.ok()) return machine;
  return absl::InvalidArgumentError(fmt::format("{}; and there is no file of that name", message_of(machine.status())));
}

absl::StatusOr<Machine> discover() {
  if (const char* file = std::getenv("HWLOC_XMLFILE"); file != nullptr && *file != 0) return load(file);
  if (const char* synthetic = std::getenv("HWLOC_SYNTHETIC"); synthetic != nullptr && *synthetic != 0)
    return from_synthetic(synthetic);
  return read_live();
}

}  // namespace gradrail::topology
