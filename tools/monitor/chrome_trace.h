#pragma once

#include <string>
#include <vector>

#include "gradrail/client.h"

namespace gradrail::tools {

/// The steps of all tasks as chrome://tracing and Perfetto draw them (Chrome's trace event format, JSON). It has a
/// process for each task, a row for each bucket. A mark without its end is left out.
std::string chrome_trace(const std::vector<TaskTrace>& tasks);

}  // namespace gradrail::tools
