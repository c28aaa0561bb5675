#pragma once

#include <string>

#include "absl/status/status.h"

namespace gradrail::launch {

/// A line for people on stdout, at once; a comment begins with "# ".
void print_line(const std::string& line);
void print_comment(const std::string& line);

/// Prints an error on stderr, so that a pipe after stdout receives results only. `task` names the task that has it.
/// Returns the exit code.
int report(const absl::Status& status, const std::string& task = "");

}  // namespace gradrail::launch
