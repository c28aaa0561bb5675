#include "tools/doctor/examine.h"

#include <utility>

#include "tools/doctor/facts/read.h"
#include "tools/doctor/table.h"

namespace gradrail::tools::doctor {
namespace {

using Pairs = std::vector<std::pair<std::string, std::string>>;

/// An unknown value leaves its key out. A program then reads "absent", not an empty string.
Pairs known(const Facts& host, const Pairs& keys) {
  Pairs pairs;
  for (const auto& [key, fact] : keys)
    if (host.has(fact)) pairs.emplace_back(key, host[fact]);
  return pairs;
}

}  // namespace

Report examine(const System& system, const ExamineOptions& options) {
  Machine machine = read_machine(system);
  read_servers(options.servers, machine);
  Report report{
      .machine =
          known(machine.host,
                {{"host", "hostname"}, {"system", "distribution"}, {"kernel", "kernel"}, {"processor", "processor"}}),
      .versions = known(machine.host, {{"nvidia_driver", "module_version"}, {"cuda_driver", "cuda_version"}})};
  report.machine.emplace_back("gpus", std::to_string(machine.gpus.size()));
  report.machine.emplace_back("rdma_devices", std::to_string(machine.rdma_devices.size()));
  report.versions.emplace(report.versions.begin(), "gradrail", GRADRAIL_VERSION);
  for (const CheckTable& table : check_tables()) report.checks.push_back(judge(table, machine));
  if (options.prove) report.proofs = prove_all(machine, options.tell);
  if (!options.prove) report.why_no_proofs = "none: --no-proof";
  // Last: a requirement can depend on any check and on any transfer.
  report.requirements = judge(options.required, report.checks, report.proofs, options.prove);
  return report;
}

}  // namespace gradrail::tools::doctor
