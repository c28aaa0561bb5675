#include "worker/models/device_pins.h"

#include <algorithm>
#include <utility>

#include "base/log.h"
#include "base/status.h"

namespace gradrail::worker {

bool DevicePins::is_covered(const void* data) const {
  return std::any_of(pinned_.begin(), pinned_.end(),
                     [&](const Run& run) { return data >= run.data && data < run.data + run.bytes; });
}

void DevicePins::append(std::vector<Run>& runs, Run more) {
  if (!runs.empty() && runs.back().data + runs.back().bytes == more.data) {
    // Adjacent tensors become one run: pinning works on pages, which they may share.
    runs.back().bytes += more.bytes;
  } else if (more.bytes > 0) {
    runs.push_back(std::move(more));
  }
}

void DevicePins::pin(gpu::Compute& device, const Run& run) {
  absl::StatusOr<std::unique_ptr<gpu::Pin>> pin = device.pin(run.data, run.bytes);
  // Pinned by another tower serves all.
  if (!pin.ok() && !absl::IsAlreadyExists(pin.status()) && !refused_) {
    refused_ = true;  // one report is enough
    log_info("host memory is not pinned, so that copies of {} are slower: {}", device.name(), message_of(pin.status()));
  }
  // A refused run is recorded as well: it is not tried again in each step.
  pinned_.push_back({run.data, run.bytes, pin.ok() ? *std::move(pin) : nullptr});
}

}  // namespace gradrail::worker
