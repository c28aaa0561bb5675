#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "topology/machine.h"

namespace gradrail::topology {

/// The machine of this process, within the cpus and memory nodes that the process may use (cgroup, taskset). If
/// HWLOC_XMLFILE or HWLOC_SYNTHETIC is set, hwloc takes that instead; `source` then names it, and the result is not
/// `live`.
/// Errors   INTERNAL: hwloc cannot read the machine; the message has the text of hwloc.
/// Threads  Any, unless HWLOC_XMLFILE is set (from_xml()); reads /sys, some ms.
absl::StatusOr<Machine> discover();

/// A saved machine: the path of an hwloc XML file (lstopo FILE.xml), or an hwloc synthetic description such as "pack:2
/// [numa] core:4 pu:2". Text is a description when no file of that name exists.
/// Errors   NOT_FOUND, PERMISSION_DENIED: the file. INVALID_ARGUMENT: neither XML of hwloc nor a description, too large
///          (over 64 MB), or contradictory; the message names the source, the cause and the remedy.
absl::StatusOr<Machine> load(const std::string& source);

/// Reads a machine from text in memory; messages contain `name`.
/// Threads  load() of a file, and from_xml(): only the thread of the caller may run, because a child process reads XML
///          (xml.h).
absl::StatusOr<Machine> from_xml(const std::string& xml, const std::string& name);
absl::StatusOr<Machine> from_synthetic(const std::string& description);

}  // namespace gradrail::topology
