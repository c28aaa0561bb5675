#pragma once

namespace gradrail::tools {

/// `gradrail info`: what was built, what is usable here, and why not. Returns the exit code.
int run_info();

}  // namespace gradrail::tools
