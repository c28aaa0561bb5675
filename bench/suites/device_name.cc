#include "bench/suites/device_name.h"

#include <optional>
#include <string_view>

#include "CLI/CLI.hpp"
#include "base/flags/text_value.h"
#include "base/parse_number.h"
#include "base/status.h"
#include "bench/driver/subprocess.h"
#include "fmt/format.h"
#include "nlohmann/json.hpp"

namespace gradrail::bench {

absl::StatusOr<int> gpu_ordinal(const std::string& on) {
  constexpr std::string_view kPrefix = "gpu:";
  if (on.starts_with(kPrefix)) {
    const std::optional<int> ordinal = parse_number<int>(std::string_view(on).substr(kPrefix.size()));
    if (ordinal && *ordinal >= 0) return *ordinal;
  }
  return absl::InvalidArgumentError(fmt::format("{}: must be the name of a GPU, gpu:N, as in gpu:0", on));
}

absl::Status check_device_name(const std::string& on) {
  if (on == "host" || gpu_ordinal(on).ok()) return absl::OkStatus();
  return absl::InvalidArgumentError(fmt::format("{}: must be host or gpu:N, as in gpu:0", on));
}

void add_on_flag(CLI::App& app, std::string& on, const char* about, bool or_host) {
  app.option_defaults()->group("GPU");
  app.add_option("--on", on, about)
      ->transform(or_host ? accepted_by(check_device_name) : accepted_by(gpu_ordinal))
      ->capture_default_str();
}

absl::StatusOr<std::unique_ptr<gpu::Compute>> open_compute(const std::string& on) {
  if (on == "host") return gpu::host_compute();
  GRADRAIL_ASSIGN_OR_RETURN(const int ordinal, gpu_ordinal(on));
  return gpu::open_device(ordinal);
}

nlohmann::json open_device(const nlohmann::json& job) {
  return std::string(message_of(open_compute(job.at("on")).status()));
}

absl::Status can_open(const std::string& on) {
  if (on == "host") return absl::OkStatus();
  GRADRAIL_RETURN_IF_ERROR(gpu_ordinal(on).status());
  // A status does not cross the pipe: the message alone does, and an empty one means success.
  Subprocess opens = Subprocess::start({{"do", "open device"}, {"on", on}});
  // Starting a driver takes seconds on a host with many GPUs, and the first kernel may be compiled from PTX.
  GRADRAIL_ASSIGN_OR_RETURN(const nlohmann::json why, opens.result(Clock::now() + std::chrono::seconds(60)));
  const auto words = why.get<std::string>();
  return words.empty() ? absl::OkStatus() : absl::FailedPreconditionError(words);
}

}  // namespace gradrail::bench
