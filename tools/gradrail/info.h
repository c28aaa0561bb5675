#pragma once

#include <string>

namespace gradrail::tools {

/// `gradrail info`: what was built, what is usable here, and why not. Returns the exit code.
/// Opens each transport and each library as a run would; nothing is left open.
int run_info();

/// `gradrail --version`: "gradrail 0.2.0 (commit 1a2b3c4, wire protocol 7)".
std::string version_line();

}  // namespace gradrail::tools
