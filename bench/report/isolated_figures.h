#pragma once

#include <functional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "bench/driver/patience.h"
#include "bench/report/figure.h"
#include "gradrail/clock.h"

namespace gradrail::bench {

/// Runs the body's measurement in a separate process (subprocess.h). An error of body or process becomes a row of this
/// path with the text of the error.
std::vector<Figure> isolated_figures(const std::string& path, uint64_t bytes, Duration timeout,
                                     const std::function<absl::StatusOr<std::vector<Figure>>()>& body);

/// The same with a deadline that the turns of the body extend.
using BodyWithPatience = std::function<absl::StatusOr<std::vector<Figure>>(Patience& patience)>;
std::vector<Figure> isolated_figures(const std::string& path, uint64_t bytes, const Patience::Limits& limits,
                                     const BodyWithPatience& body);

/// The timeout of a body that measures for `seconds`, with room for devices that open slowly and for a busy machine.
Duration timeout_for(double seconds);

}  // namespace gradrail::bench
