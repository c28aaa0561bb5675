#include "launch/placement/gpu_probe.h"

#include <optional>

#include "absl/strings/str_split.h"
#include "base/parse_number.h"
#include "base/status.h"
#include "base/subprocess.h"
#include "fmt/format.h"
#include "gpu/driver/device.h"
#include "gpu/driver/driver.h"
#include "gradrail/clock.h"

namespace gradrail::launch {
namespace {

/// A host with eight GPUs and no persistence daemon takes seconds to wake them.
constexpr Duration kTimeout = std::chrono::seconds(30);

/// In the child process: one line for each GPU, "ordinal <tab> address <tab> name".
/// Errors  NOT_FOUND: there is no GPU. FAILED_PRECONDITION: there is a driver, and it does not work.
absl::StatusOr<std::string> probe_driver() {
  const absl::StatusOr<std::vector<gpu::DeviceInfo>> devices = gpu::list_devices();
  if (!devices.ok()) {
    // Two codes, since only a driver that is installed but fails deserves a warning.
    const auto code = gpu::Driver::is_installed() ? absl::StatusCode::kFailedPrecondition : absl::StatusCode::kNotFound;
    return absl::Status(code, devices.status().message());
  }
  if (devices->empty()) return absl::NotFoundError("the NVIDIA driver shows no GPU (is CUDA_VISIBLE_DEVICES set?)");
  std::string text;
  for (const gpu::DeviceInfo& device : *devices) {
    text += fmt::format("{}\t{}\t{}\n", device.ordinal, device.pci_address, device.name);
  }
  return text;
}

ProbedGpus parse(const std::string& text) {
  ProbedGpus found;
  const std::vector<std::string> lines = absl::StrSplit(text, '\n', absl::SkipEmpty());
  for (const std::string& line : lines) {
    const std::vector<std::string> parts = absl::StrSplit(line, '\t');
    // A library that prints into the pipe must not become a GPU.
    if (parts.size() != 3) continue;
    const std::optional<int> ordinal = parse_number<int>(parts[0]);
    if (ordinal) found.gpus.push_back({.ordinal = *ordinal, .pci_address = parts[1], .name = parts[2]});
  }
  return found;
}

ProbedGpus none_because(const absl::Status& status) {
  if (status.code() == absl::StatusCode::kNotFound) return {.why_none = std::string(message_of(status))};
  if (status.code() == absl::StatusCode::kFailedPrecondition)
    return {.why_none = std::string(message_of(status)), .driver_failed = true};
  return {.why_none = fmt::format("the probe of the NVIDIA driver failed: {}", message_of(status)),
          .driver_failed = true};
}

}  // namespace

ProbedGpus probe_gpus() {
  const absl::StatusOr<std::string> text = run_in_subprocess(probe_driver, {.timeout = kTimeout});
  return text.ok() ? parse(*text) : none_because(text.status());
}

}  // namespace gradrail::launch
