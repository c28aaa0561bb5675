#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "topology/machine.h"

namespace gradrail::topology {

// The description of a machine that the child process of from_xml() sends to its parent.

/// Writes everything but `source` and `live`.
std::string write_machine(const Machine& machine);

/// Reads the output of write_machine() and trusts no part of it: a hostile file may have taken over the child process.
/// The result has the invariants of `Machine`.
/// Errors  INVALID_ARGUMENT names the contradiction.
absl::StatusOr<Machine> parse_machine(const std::string& text);

}  // namespace gradrail::topology
