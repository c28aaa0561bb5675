#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "gpu/compute/compute.h"
#include "nlohmann/json_fwd.hpp"

namespace CLI {
class App;
}

namespace gradrail::bench {

/// N of "gpu:N". Errors  INVALID_ARGUMENT: not such a name.
absl::StatusOr<int> gpu_ordinal(const std::string& on);

/// Errors  INVALID_ARGUMENT: neither "host" nor "gpu:N".
absl::Status check_device_name(const std::string& on);

/// The flag --on. Its value is the name of a GPU, or "host" where `or_host`.
void add_on_flag(CLI::App& app, std::string& on, const char* about, bool or_host);

/// "host" or "gpu:N". Errors  INVALID_ARGUMENT: neither. Otherwise those of gpu::open_device().
absl::StatusOr<std::unique_ptr<gpu::Compute>> open_compute(const std::string& on);

/// Whether that would be opened: tried in a separate process, since drivers do not survive a fork.
/// Errors  INVALID_ARGUMENT: not such a name. FAILED_PRECONDITION: the cause, so that it is logged once and not in each
///         row.
absl::Status can_open(const std::string& on);

/// The part of it that runs in that process (bench/driver/jobs.h).
nlohmann::json open_device(const nlohmann::json& job);

}  // namespace gradrail::bench
