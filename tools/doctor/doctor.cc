#include "tools/doctor/doctor.h"

#include <unistd.h>

#include <cstdio>
#include <vector>

#include "CLI/CLI.hpp"
#include "base/flags/text_value.h"
#include "base/status.h"
#include "fmt/format.h"
#include "gradrail/cluster.h"
#include "tools/doctor/examine.h"

namespace gradrail::tools {
namespace {

absl::StatusOr<std::vector<std::string>> servers_of(const DoctorFlags& flags) {
  if (!flags.cluster.empty() && !flags.ps_hosts.empty())
    return absl::InvalidArgumentError("give either --cluster or --ps_hosts");
  std::vector<std::string> servers;
  if (!flags.cluster.empty()) {
    GRADRAIL_ASSIGN_OR_RETURN(const ClusterSpec cluster, read_cluster_file(flags.cluster));
    servers = cluster.ps;
  } else if (!flags.ps_hosts.empty()) {
    GRADRAIL_ASSIGN_OR_RETURN(servers, parse_host_list(flags.ps_hosts));
  }
  return servers;
}

/// Shows the current step in one line of a terminal, which the next one overwrites; piped or recorded output is the
/// report alone.
void tell(const std::string& what) {
  // "\r\033[K" (ECMA-48, erase in line) returns to column 1 and removes the longer text of the step before.
  if (isatty(STDERR_FILENO) != 0) fmt::print(stderr, "\r\033[K{}", what);
}

}  // namespace

void add_doctor_flags(CLI::App& command, DoctorFlags& flags) {
  const auto add = [&](const char* name, auto& value, const char* help) {
    // take_last(): a later flag overrides an earlier one, so that a script can append its own to given ones.
    return command.add_option(name, value, help)->take_last();
  };
  command.option_defaults()->group("Report");
  add("--require", flags.require,
      "exit code 4 unless all of these hold: rdma, gpu, gpu-direct, tasks, or transports' names");
  command.add_flag("--no-proof,--no_proof", flags.no_proof, "skip the transfers");
  command.add_flag("--json", flags.json, "one JSON object instead of the report");
  command.option_defaults()->group("Cluster");
  add("--cluster", flags.cluster, "try to connect to the parameter servers of this file");
  add("--ps_hosts,--ps-hosts", flags.ps_hosts, "try to connect to these addresses, host:port,...")
      ->transform(accepted_by(parse_host_list));
}

absl::StatusOr<bool> run_doctor(const DoctorFlags& flags) {
  // All flags are checked before the first probe: the probes take seconds to minutes.
  GRADRAIL_ASSIGN_OR_RETURN(const std::vector<std::string> required, doctor::parse_requirements(flags.require));
  GRADRAIL_ASSIGN_OR_RETURN(const std::vector<std::string> servers, servers_of(flags));
  const doctor::Report report = doctor::examine(
      doctor::System(), {.servers = servers, .prove = !flags.no_proof, .required = required, .tell = tell});
  tell("");
  const std::string text = flags.json ? doctor::to_json(report) : doctor::to_text(report, isatty(STDOUT_FILENO) != 0);
  std::fwrite(text.data(), 1, text.size(), stdout);
  return report.all_required_hold();
}

}  // namespace gradrail::tools
