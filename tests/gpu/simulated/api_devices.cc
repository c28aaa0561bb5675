#include <chrono>
#include <cstdio>
#include <cstring>
#include <string>
#include <thread>

#include "tests/gpu/simulated/api.h"

using namespace gradrail::simulated;
using cuda::Result;

GRADRAIL_SIMULATED Result cuInit(unsigned) {
  const Configuration& configuration = Machine::get().configuration();
  if (configuration.init_result != cuda::kSuccess) return configuration.init_result;
  std::this_thread::sleep_for(std::chrono::milliseconds(configuration.start_ms));
  return configuration.devices == 0 ? cuda::kNoDevice : cuda::kSuccess;
}

GRADRAIL_SIMULATED Result cuDriverGetVersion(int* version) {
  *version = Machine::get().configuration().driver_version;
  return cuda::kSuccess;
}

GRADRAIL_SIMULATED Result cuGetErrorName(Result result, const char** name) {
  switch (result) {
    case cuda::kSuccess:
      *name = "CUDA_SUCCESS";
      break;
    case cuda::kInvalidValue:
      *name = "CUDA_ERROR_INVALID_VALUE";
      break;
    case cuda::kOutOfMemory:
      *name = "CUDA_ERROR_OUT_OF_MEMORY";
      break;
    case cuda::kNoDevice:
      *name = "CUDA_ERROR_NO_DEVICE";
      break;
    case cuda::kInvalidImage:
      *name = "CUDA_ERROR_INVALID_IMAGE";
      break;
    case cuda::kInvalidContext:
      *name = "CUDA_ERROR_INVALID_CONTEXT";
      break;
    case cuda::kNoBinaryForGpu:
      *name = "CUDA_ERROR_NO_BINARY_FOR_GPU";
      break;
    case cuda::kNotFound:
      *name = "CUDA_ERROR_NOT_FOUND";
      break;
    case cuda::kIllegalAddress:
      *name = "CUDA_ERROR_ILLEGAL_ADDRESS";
      break;
    case cuda::kMisalignedAddress:
      *name = "CUDA_ERROR_MISALIGNED_ADDRESS";
      break;
    case cuda::kHostMemoryAlreadyRegistered:
      *name = "CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED";
      break;
    case cuda::kSystemDriverMismatch:
      *name = "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH";
      break;
    case cuda::kUnknown:
      *name = "CUDA_ERROR_UNKNOWN";
      break;
    default:
      *name = nullptr;
      return cuda::kInvalidValue;
  }
  return cuda::kSuccess;
}

GRADRAIL_SIMULATED Result cuGetErrorString(Result result, const char** text) { return cuGetErrorName(result, text); }

GRADRAIL_SIMULATED Result cuDeviceGetCount(int* count) {
  *count = Machine::get().configuration().devices;
  return cuda::kSuccess;
}

GRADRAIL_SIMULATED Result cuDeviceGet(cuda::Device* device, int ordinal) {
  if (Machine::get().device(ordinal) == nullptr) return cuda::kInvalidDevice;
  *device = ordinal;
  return cuda::kSuccess;
}

GRADRAIL_SIMULATED Result cuDeviceGetName(char* name, int bytes, cuda::Device) {
  std::snprintf(name, static_cast<size_t>(bytes), "Simulated GPU");
  return cuda::kSuccess;
}

GRADRAIL_SIMULATED Result cuDeviceGetPCIBusId(char* address, int bytes, cuda::Device device) {
  std::snprintf(address, static_cast<size_t>(bytes), "0000:%02X:00.0", 0xA0 + device);
  return cuda::kSuccess;
}

GRADRAIL_SIMULATED Result cuDeviceGetAttribute(int* value, int attribute, cuda::Device device) {
  if (Machine::get().device(device) == nullptr) return cuda::kInvalidDevice;
  const std::map<int, uint64_t>& given = Machine::get().configuration().attributes;
  if (const auto found = given.find(attribute); found != given.end()) {
    *value = static_cast<int>(found->second);
    return cuda::kSuccess;
  }
  switch (attribute) {
    case cuda::kMultiprocessorCount:
      *value = 2;
      break;  // few: each thread of a launch is a call
    case cuda::kComputeCapabilityMajor:
      *value = Machine::get().configuration().compute_major;
      break;
    case cuda::kUnifiedAddressing:
    case cuda::kGpuDirectRdmaSupported:
      *value = 1;
      break;
    case cuda::kGpuDirectRdmaWritesOrdering:
      *value = Machine::get().configuration().ordering;
      break;
    case cuda::kGpuDirectRdmaFlushWritesOptions:
      *value = Machine::get().configuration().flushes_writes ? cuda::kFlushWritesOptionHost : 0;
      break;
    case cuda::kCanUseHostPointerForRegisteredMemory:
      *value = Machine::get().configuration().pinned_addresses ? 1 : 0;
      break;
    case cuda::kPageableMemoryUsesHostPageTables:
      *value = Machine::get().configuration().coherent ? 1 : 0;
      break;
    case cuda::kCanUse64BitStreamMemOps:
      *value = Machine::get().configuration().stream_writes ? 1 : 0;
      break;
    case cuda::kDmaBufSupported:
      *value = Machine::get().configuration().dma_buf ? 1 : 0;
      break;
    default:
      *value = 0;
      break;
  }
  return cuda::kSuccess;
}

GRADRAIL_SIMULATED Result cuDeviceTotalMem_v2(size_t* bytes, cuda::Device) {
  *bytes = Machine::get().configuration().memory_bytes;
  return cuda::kSuccess;
}

GRADRAIL_SIMULATED Result cuDevicePrimaryCtxRetain(cuda::Context* context, cuda::Device handle) {
  Device* device = Machine::get().device(handle);
  if (device == nullptr) return cuda::kInvalidDevice;
  if (device->error != cuda::kSuccess) return device->error;
  if (const Result result = Machine::get().configuration().open_result; result != cuda::kSuccess) return result;
  const gradrail::MutexLock lock(Machine::get().mutex);
  if (device->retained == 0) {
    const size_t bytes = Machine::get().configuration().context_bytes;
    if (!Machine::get().take_memory(*device, bytes)) return cuda::kOutOfMemory;
    device->context_bytes = bytes;
  }
  ++device->retained;
  *context = context_of(device);
  return cuda::kSuccess;
}

GRADRAIL_SIMULATED Result cuDevicePrimaryCtxRelease_v2(cuda::Device handle) {
  Device* device = Machine::get().device(handle);
  const gradrail::MutexLock lock(Machine::get().mutex);
  if (device == nullptr || device->retained == 0) return cuda::kInvalidContext;
  if (--device->retained == 0) device->used_bytes -= device->context_bytes;
  return cuda::kSuccess;
}

GRADRAIL_SIMULATED Result cuCtxSetCurrent(cuda::Context context) {
  set_current_device(reinterpret_cast<Device*>(context));
  return cuda::kSuccess;
}
