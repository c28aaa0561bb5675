#include "tools/doctor/examine.h"

#include <algorithm>

#include "fmt/format.h"
#include "tools/doctor/checks/gpu_checks.h"
#include "tools/doctor/checks/host_checks.h"
#include "tools/doctor/checks/library_checks.h"
#include "tools/doctor/checks/pci_checks.h"
#include "tools/doctor/checks/rdma_checks.h"
#include "tools/doctor/checks/tasks_check.h"
#include "tools/doctor/proofs/library_probe.h"
#include "tools/doctor/text.h"

namespace gradrail::tools::doctor {
namespace {

using Pairs = std::vector<std::pair<std::string, std::string>>;

/// An unknown value leaves its key out. A program then reads "absent", not an empty string.
void add(Pairs& pairs, const char* name, const std::string& value) {
  if (!value.empty()) pairs.emplace_back(name, value);
}

/// PRETTY_NAME="Debian GNU/Linux 12 (bookworm)".
std::string distribution(Tree& tree) {
  constexpr std::string_view kName = "PRETTY_NAME=";
  for (const std::string& line : lines_of(tree.read("/etc/os-release").text)) {
    if (line.compare(0, kName.size(), kName) != 0) continue;
    std::string name = printable(line.substr(kName.size()));
    name.erase(std::remove(name.begin(), name.end(), '"'), name.end());
    return name;
  }
  return "";
}

std::string processor(Tree& tree) {
  constexpr std::string_view kName = "model name";
  // arm64 has no such line: the report then leaves the processor out.
  for (const std::string& line : lines_of(tree.read("/proc/cpuinfo").text))
    if (line.compare(0, kName.size(), kName) == 0) return printable(trimmed(line.substr(line.find(':') + 1)));
  return "";
}

Pairs describe_machine(System& system, const GpuHost& gpus, const std::vector<RdmaDevice>& devices) {
  Tree& tree = system.tree();
  Pairs pairs;
  add(pairs, "host", tree.line("/proc/sys/kernel/hostname"));
  add(pairs, "system", distribution(tree));
  add(pairs, "kernel", tree.line("/proc/sys/kernel/osrelease"));
  add(pairs, "processor", processor(tree));
  add(pairs, "gpus", std::to_string(gpus.gpus.size()));
  add(pairs, "rdma_devices", std::to_string(devices.size()));
  return pairs;
}

Pairs describe_versions(System& system, const GpuHost& gpus) {
  Pairs pairs = {{"gradrail", GRADRAIL_VERSION}};
  const absl::StatusOr<LibraryAnswer> ucx = probe_ucx(system), libfabric = probe_libfabric(system);
  if (ucx.ok()) add(pairs, "ucx", ucx->version);
  if (libfabric.ok()) add(pairs, "libfabric", libfabric->version);
  add(pairs, "nvidia_driver", gpus.module_version);
  if (gpus.cuda_version)
    add(pairs, "cuda_driver", fmt::format("{}.{}", gpus.cuda_version->major, gpus.cuda_version->minor));
  return pairs;
}

void append(std::vector<Check>& checks, std::vector<Check> more) {
  for (Check& check : more) checks.push_back(std::move(check));
}

void add_proofs(System& system, const ExamineOptions& options, const std::vector<RdmaDevice>& devices,
                const GpuHost& gpus, Report& report) {
  if (!system.is_live()) {
    report.why_no_proofs = "none: a recording moves no bytes; run gradrail doctor on that machine";
  } else if (!options.prove) {
    report.why_no_proofs = "none: --no-proof";
  } else {
    report.proofs = prove_all(system, devices, gpus, options.tell);
  }
}

}  // namespace

Report examine(System& system, const ExamineOptions& options) {
  // Both are read once and passed on: all checks judge the same devices even if one disappears meanwhile.
  const std::vector<RdmaDevice> devices = read_rdma_devices(system.tree());
  const GpuHost gpus = read_gpus(system);
  Report report{.machine = describe_machine(system, gpus, devices)};
  append(report.checks, check_rdma(system, devices));
  append(report.checks, check_gpus(system, gpus));
  append(report.checks, check_pci(system, gpus, devices));
  append(report.checks, check_libraries(system, gpus, devices));
  append(report.checks, check_host(system, devices));
  // After the checks, which have asked the libraries: observe() keeps each answer.
  report.versions = describe_versions(system, gpus);
  // A recording has no network: the tasks of a cluster are tried from a live host only.
  report.checks.push_back(check_tasks(system.is_live() ? options.servers : std::vector<std::string>{}));
  add_proofs(system, options, devices, gpus, report);
  // Last: a requirement can depend on any check and on any transfer.
  report.requirements = judge(options.required, report.checks, report.proofs, system.is_live() && options.prove);
  return report;
}

}  // namespace gradrail::tools::doctor
