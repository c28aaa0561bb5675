#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "topology/machine.h"

namespace gradrail::topology {

/// Imports the text of an hwloc XML file, version 1 or 2. hwloc trusts such a text: some contradictions end in a null
/// pointer, others in a broken assertion. The import therefore runs in a child process with limits, and the parent
/// checks the result.
/// Errors   INVALID_ARGUMENT: the cause and the remedy. DEADLINE_EXCEEDED, RESOURCE_EXHAUSTED: as run_in_subprocess().
/// Threads  Only the thread of the caller may run. Tasks and tools import a file before they start threads. A child
///          that executes the program again would need a hidden command in each program and test.
absl::StatusOr<Machine> import_xml(const std::string& text);

}  // namespace gradrail::topology
