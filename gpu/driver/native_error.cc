#include "gpu/driver/native_error.h"

#include <string>

#include "absl/strings/cord.h"
#include "fmt/format.h"

namespace gradrail::gpu {
namespace {

/// The hardware or the way to it failed: another process, or this one after a restart on another device, may continue.
bool is_lost(cuda::Result result) {
  switch (result) {
    case cuda::kDeinitialized:
    case cuda::kDeviceUnavailable:
    case cuda::kNoDevice:
    case cuda::kEccUncorrectable:
    case cuda::kNvlinkUncorrectable:
    case cuda::kContained:
    case cuda::kLaunchTimeout:
    case cuda::kContextIsDestroyed:
    case cuda::kHardwareStackError:
    case cuda::kLaunchFailed:  // a kernel's own mistake mostly has a name; this is what is left of a GPU off the bus
    case cuda::kSystemNotReady:
    case cuda::kMpsClientTerminated:
    case cuda::kExternalDevice:
    case cuda::kUnknown:
      return true;
    default:
      return false;
  }
}

/// A kernel did what it may not: a mistake of ours, after which CUDA refuses the whole context.
bool is_broken_context(cuda::Result result) {
  switch (result) {
    case cuda::kIllegalAddress:
    case cuda::kAssert:
    case cuda::kIllegalInstruction:
    case cuda::kMisalignedAddress:
    case cuda::kInvalidAddressSpace:
    case cuda::kInvalidPc:
      return true;
    default:
      return false;
  }
}

std::string_view remedy(cuda::Result result) {
  switch (result) {
    case cuda::kEccUncorrectable:
      return " (memory error: reset or replace the GPU, see nvidia-smi -q -d ECC)";
    case cuda::kLaunchTimeout:
      return " (a display's watchdog ended the kernel: use a GPU without a display)";
    case cuda::kSystemNotReady:
      return " (is nvidia-fabricmanager running?)";
    case cuda::kLaunchFailed:
      return " (Xid 79 in dmesg: the GPU has fallen off the bus; otherwise a kernel failed: please report it)";
    case cuda::kOutOfMemory:
      return " (smaller batch or size, fewer towers on this GPU, or stop other processes on it: nvidia-smi)";
    case cuda::kNotPermitted:
      return " (a container or MPS forbids it)";
    default:
      break;
  }
  if (is_lost(result)) return " (the GPU was lost: see dmesg for Xid, and nvidia-smi)";
  if (is_broken_context(result)) return " (a kernel failed: please report it; compute-sanitizer finds the cause)";
  return "";
}

std::string_view start_remedy(cuda::Result result) {
  switch (result) {
    case cuda::kStubLibrary:
      return "this libcuda.so.1 is the toolkit's stub: remove its folder from LD_LIBRARY_PATH";
    case cuda::kSystemDriverMismatch:
      return "library and kernel module differ: restart the host after the update";
    case cuda::kCompatNotSupportedOnDevice:
      return "this GPU needs a newer driver than CUDA's compatibility package";
    case cuda::kSystemNotReady:
      return "start nvidia-fabricmanager";
    // cuInit in containers without access to the device files ends with one of these two.
    case cuda::kOperatingSystem:
    case cuda::kUnknown:
      return "may this user open /dev/nvidia*? is the kernel module loaded (nvidia-smi)?";
    default:
      return "does nvidia-smi work?";
  }
}

constexpr const char* kLossMark = "gradrail/device_loss";  ///< the payload of a device_loss()

}  // namespace

bool is_lasting(cuda::Result result) { return is_lost(result) || is_broken_context(result); }

absl::Status device_loss(std::string_view cause) {
  // UNAVAILABLE makes a worker exit with the code for a restart.
  absl::Status status = absl::UnavailableError(std::string(cause));
  status.SetPayload(kLossMark, absl::Cord());
  return status;
}

bool is_device_loss(const absl::Status& status) { return status.GetPayload(kLossMark).has_value(); }

absl::Status to_status(const Driver& driver, cuda::Result result, std::string_view device, std::string_view operation) {
  if (result == cuda::kSuccess) return absl::OkStatus();
  const std::string text = fmt::format("{}: {}: {}{}", device, operation, driver.name_of(result), remedy(result));
  if (is_lost(result)) return device_loss(text);
  // INTERNAL is an error of this program.
  return result == cuda::kOutOfMemory ? absl::ResourceExhaustedError(text) : absl::InternalError(text);
}

absl::Status start_error(const Driver& driver, cuda::Result result) {
  return absl::FailedPreconditionError(
      fmt::format("the NVIDIA driver does not start: {}: {}", driver.name_of(result), start_remedy(result)));
}

}  // namespace gradrail::gpu
