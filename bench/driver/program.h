#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace gradrail::bench {

/// Runs a program, found in the search path of a shell, and returns its standard output. It ends with this process
/// (children.h); the caller of this process has the deadlines.
/// Errors  INTERNAL: it could not be started or failed; the text has the reason and its last line.
absl::StatusOr<std::string> run_program(const std::vector<std::string>& words);

/// The folder with the programs of the peers in the build tree of this program. The path is relative to this program:
/// on another machine, a folder with the name of the build folder may belong to another user.
std::string peers_folder();

/// Finds a program in the search path of a shell; "": not found.
std::string find_program(const std::string& name);

/// "a\nb\n\n": "b".
std::string last_line(const std::string& text);

}  // namespace gradrail::bench
