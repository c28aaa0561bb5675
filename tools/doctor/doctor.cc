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

/// A recording is files only. The flags that need this host are refused together with --root, not ignored.
absl::Status check_flags(const DoctorFlags& flags) {
  if (flags.root.empty()) return absl::OkStatus();
  if (!flags.record.empty()) {
    return absl::InvalidArgumentError("--record copies what is read of this machine; leave out --root");
  }
  if (!flags.cluster.empty() || !flags.ps_hosts.empty()) {
    return absl::InvalidArgumentError(
        "tasks are tried from this machine; leave out --root, or --cluster and --ps_hosts");
  }
  return absl::OkStatus();
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
      "exit code 4 unless all of these hold: rdma, gpu, gpu-direct, nccl, tasks, or transports' names");
  command.add_flag("--no-proof,--no_proof", flags.no_proof, "skip the transfers");
  command.add_flag("--json", flags.json, "one JSON object instead of the report");
  add("--root", flags.root, "examine a recorded machine instead of this one, without transfers");
  add("--record", flags.record, "copy the files that are read to this new folder, for --root");
  command.option_defaults()->group("Cluster");
  add("--cluster", flags.cluster, "try to connect to the parameter servers of this file");
  add("--ps_hosts,--ps-hosts", flags.ps_hosts, "try to connect to these addresses, host:port,...")
      ->transform(accepted_by(parse_host_list));
}

absl::StatusOr<bool> run_doctor(const DoctorFlags& flags) {
  // All flags are checked before the first probe: the probes take seconds to minutes.
  GRADRAIL_RETURN_IF_ERROR(check_flags(flags));
  GRADRAIL_ASSIGN_OR_RETURN(const std::vector<std::string> required, doctor::parse_requirements(flags.require));
  GRADRAIL_ASSIGN_OR_RETURN(const std::vector<std::string> servers, servers_of(flags));
  GRADRAIL_ASSIGN_OR_RETURN(doctor::Tree tree, doctor::Tree::open(flags.root));
  // All checks would report a host that has nothing if both are missing.
  if (!tree.is_folder("/proc") && !tree.is_folder("/sys")) {
    return absl::NotFoundError(fmt::format(
        "--root {}: neither proc nor sys can be read in it; name a folder that `gradrail doctor --record` made",
        flags.root));
  }
  // The recording starts before the first check: it has the files that the checks read, and nothing else.
  if (!flags.record.empty()) GRADRAIL_RETURN_IF_ERROR(tree.record_to(flags.record));
  doctor::System system(std::move(tree));
  doctor::Report report =
      doctor::examine(system, {.servers = servers, .prove = !flags.no_proof, .required = required, .tell = tell});
  tell("");
  report.root = flags.root;
  const std::string text = flags.json ? doctor::to_json(report) : doctor::to_text(report, isatty(STDOUT_FILENO) != 0);
  std::fwrite(text.data(), 1, text.size(), stdout);
  // The check of the recording follows the report: a failed copy does not take the findings from the user.
  GRADRAIL_RETURN_IF_ERROR(system.tree().recording());
  return report.all_required_hold();
}

}  // namespace gradrail::tools
