#pragma once

namespace gradrail::tools {

/// `gradrail info`: what was built, what is usable here, and why not. Returns the exit code.
/// Opens each transport and each library as a run would; nothing is left open.
int run_info();

}  // namespace gradrail::tools
