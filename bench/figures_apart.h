#pragma once

#include <functional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "base/clock.h"
#include "bench/figure.h"

namespace gradrail::bench {

/// What the body measures in a process of its own (apart.h). Instead of an error, of the body or the process, a row of
/// this path that says so.
std::vector<Figure> figures_apart(const std::string& path, uint64_t bytes, Duration patience,
                                  const std::function<absl::StatusOr<std::vector<Figure>>()>& body);

/// For bodies that measure `seconds` at a time, on machines that have other things to do.
Duration patience_for(double seconds);

}  // namespace gradrail::bench
