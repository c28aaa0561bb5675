#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <string>

#include "tests/gpu/simulated/api.h"

using namespace gradrail::simulated;
using cuda::DevicePointer;
using cuda::Result;

namespace {

AddressSpace& memory() { return Machine::get().memory(); }

/// Content of an IPC handle: the location of the file behind the memory.
struct Handle {
  char magic[8];
  int process;
  int fd;
  size_t bytes;
};
constexpr char kMagic[8] = {'s', 'i', 'm', 'g', 'p', 'u', '0', '1'};
static_assert(sizeof(Handle) <= sizeof(cuda::IpcMemoryHandle));

/// Whether all of it is mapped, and may be written.
bool is_writable(uintptr_t address, size_t bytes) {
  std::ifstream mappings("/proc/self/maps");
  uintptr_t checked = address;  // in rising order, as the file is
  for (std::string line; checked < address + bytes && std::getline(mappings, line);) {
    uintptr_t begin = 0, end = 0;
    char rights[5] = {};
    if (std::sscanf(line.c_str(), "%lx-%lx %4s", &begin, &end, rights) != 3 || end <= checked) continue;
    if (begin > checked || rights[1] != 'w') return false;
    checked = end;
  }
  return checked >= address + bytes;
}

void* pointer(DevicePointer address) { return reinterpret_cast<void*>(address); }

}  // namespace

GRADRAIL_SIMULATED Result cuMemAlloc_v2(DevicePointer* address, size_t bytes) {
  const Ready ready;
  if (const Result error = ready.error(); error != cuda::kSuccess) return error;
  if (bytes == 0) return cuda::kInvalidValue;
  if (!Machine::get().take_memory(*ready.device, bytes)) return cuda::kOutOfMemory;
  *address = memory().allocate(ready.device, bytes);
  if (*address != 0) return cuda::kSuccess;
  ready.device->used_bytes -= bytes;
  return cuda::kOutOfMemory;
}

GRADRAIL_SIMULATED Result cuMemFree_v2(DevicePointer address) {
  const auto allocation = memory().find(address);
  if (!allocation || allocation->address != address || allocation->imported) return or_late_error(cuda::kInvalidValue);
  Machine::get().drain_with_peers(*allocation->device);  // as the real one does, without a word in its manual
  allocation->device->used_bytes -= allocation->bytes;
  return or_late_error(memory().release(address, false) ? cuda::kSuccess : cuda::kInvalidValue);
}

GRADRAIL_SIMULATED Result cuMemGetInfo_v2(size_t* free_bytes, size_t* total_bytes) {
  const Ready ready;
  if (const Result error = ready.error(); error != cuda::kSuccess) return error;
  *total_bytes = Machine::get().configuration().memory_bytes;
  *free_bytes = *total_bytes - ready.device->used_bytes;
  return cuda::kSuccess;
}

GRADRAIL_SIMULATED Result cuMemGetAddressRange_v2(DevicePointer* base, size_t* bytes, DevicePointer address) {
  if (const Result late = late_error(); late != cuda::kSuccess) return late;
  const auto allocation = memory().find(address);
  if (!allocation) return cuda::kNotFound;
  *base = allocation->address;
  *bytes = allocation->bytes;
  return cuda::kSuccess;
}

GRADRAIL_SIMULATED Result cuMemHostRegister_v2(void* data, size_t bytes, unsigned) {
  const Ready ready;
  if (const Result error = ready.error(); error != cuda::kSuccess) return error;
  const auto address = reinterpret_cast<uintptr_t>(data);
  if (data == nullptr || bytes == 0 || memory().contains(address)) return cuda::kInvalidValue;
  if (!is_writable(address, bytes)) return cuda::kInvalidValue;  // like the real driver, unless the access is read-only
  if (const Result wanted = Machine::get().configuration().pin_result; wanted != 0) return wanted;
  return memory().pin(address, bytes) ? cuda::kSuccess : cuda::kHostMemoryAlreadyRegistered;
}

GRADRAIL_SIMULATED Result cuMemHostUnregister(void* data) {
  const bool unpinned = memory().unpin(reinterpret_cast<uintptr_t>(data));
  return or_late_error(unpinned ? cuda::kSuccess : cuda::kHostMemoryNotRegistered);
}

GRADRAIL_SIMULATED Result cuMemcpyAsync(DevicePointer to, DevicePointer from, size_t bytes, cuda::Stream handle) {
  const Ready ready;
  if (const Result error = ready.error(); error != cuda::kSuccess) return error;
  if (!memory().is_usable(to, bytes) || !memory().is_usable(from, bytes)) return cuda::kInvalidValue;
  if (memory().is_partly_pinned(to, bytes) || memory().is_partly_pinned(from, bytes)) return cuda::kInvalidValue;
  Stream& stream = *stream_of(handle);
  const auto is_pageable = [&](DevicePointer address) {
    return !memory().contains(address) && !memory().is_pinned(address, bytes);
  };
  const bool waits = is_pageable(from) || is_pageable(to);
  if (const Result refused = waits ? refuse_in_capture(stream) : cuda::kSuccess; refused != cuda::kSuccess)
    return refused;
  if (waits) ++Machine::get().pageable_copies;
  if (waits) stream.drain();  // the real one may do so before it stages the bytes, however long it takes
  const uint64_t to_pin = memory().pin_of(to, bytes), from_pin = memory().pin_of(from, bytes);
  enqueue(stream, [=, device = ready.device] {
    // A graph runs long after its capture, and what was freed or unpinned meanwhile is not mapped any more.
    if (memory().is_usable(to, bytes) && memory().is_usable(from, bytes) && memory().pin_of(to, bytes) == to_pin &&
        memory().pin_of(from, bytes) == from_pin) {
      std::memcpy(pointer(to), pointer(from), bytes);
    } else {
      device->error = cuda::kIllegalAddress;
    }
  });
  if (waits) stream.drain();
  return cuda::kSuccess;
}

GRADRAIL_SIMULATED Result cuMemsetD32Async(DevicePointer to, unsigned value, size_t count, cuda::Stream stream) {
  const Ready ready;
  if (const Result error = ready.error(); error != cuda::kSuccess) return error;
  if (to % sizeof(value) != 0 || !memory().contains(to) || !memory().is_usable(to, count * sizeof(value))) {
    return cuda::kInvalidValue;
  }
  enqueue(*stream_of(stream), [=, device = ready.device] {
    if (memory().is_usable(to, count * sizeof(value)))
      std::fill_n(static_cast<unsigned*>(pointer(to)), count, value);
    else
      device->error = cuda::kIllegalAddress;  // freed meanwhile
  });
  return cuda::kSuccess;
}

GRADRAIL_SIMULATED Result cuPointerGetAttribute(void* value, int attribute, DevicePointer address) {
  if (const Result late = late_error(); late != cuda::kSuccess) return late;
  if (attribute != cuda::kPointerAttributeMemoryType) return cuda::kInvalidValue;
  const bool is_device = memory().find(address).has_value();
  if (!is_device && !memory().is_pinned(address, 1)) return cuda::kInvalidValue;
  *static_cast<unsigned*>(value) = is_device ? cuda::kMemoryTypeDevice : cuda::kMemoryTypeHost;
  return cuda::kSuccess;
}

GRADRAIL_SIMULATED Result cuPointerSetAttribute(const void*, int attribute, DevicePointer address) {
  if (const Result late = late_error(); late != cuda::kSuccess) return late;
  if (attribute != cuda::kPointerAttributeSyncMemops) return cuda::kInvalidValue;
  return memory().find(address) ? cuda::kSuccess : cuda::kInvalidValue;
}

GRADRAIL_SIMULATED Result cuIpcGetMemHandle(cuda::IpcMemoryHandle* result, DevicePointer address) {
  if (const Result late = late_error(); late != cuda::kSuccess) return late;
  const auto allocation = memory().find(address);
  if (!allocation || allocation->imported) return cuda::kInvalidValue;
  Handle handle{.process = getpid(), .fd = allocation->fd, .bytes = allocation->bytes};
  std::memcpy(handle.magic, kMagic, sizeof(kMagic));
  std::memset(result, 0, sizeof(*result));
  std::memcpy(result, &handle, sizeof(handle));
  return cuda::kSuccess;
}

GRADRAIL_SIMULATED Result cuIpcOpenMemHandle_v2(DevicePointer* address, cuda::IpcMemoryHandle words, unsigned) {
  const Ready ready;
  if (const Result error = ready.error(); error != cuda::kSuccess) return error;
  Handle handle;
  std::memcpy(&handle, &words, sizeof(handle));
  if (const Result wanted = Machine::get().configuration().ipc_result; wanted != 0) return wanted;
  if (std::memcmp(handle.magic, kMagic, sizeof(kMagic)) != 0) return cuda::kInvalidValue;
  if (handle.process == getpid()) return cuda::kInvalidContext;  // CUDA maps memory of others only
  char path[64];
  std::snprintf(path, sizeof(path), "/proc/%d/fd/%d", handle.process, handle.fd);
  const int fd = open(path, O_RDWR | O_CLOEXEC);
  if (fd < 0) return cuda::kInvalidValue;
  *address = memory().import(ready.device, fd, handle.bytes);
  return *address != 0 ? cuda::kSuccess : cuda::kOutOfMemory;
}

GRADRAIL_SIMULATED Result cuIpcCloseMemHandle(DevicePointer address) {
  const auto allocation = memory().find(address);
  if (!allocation) return or_late_error(cuda::kInvalidValue);
  Machine::get().drain(*allocation->device);
  return or_late_error(memory().release(address, true) ? cuda::kSuccess : cuda::kInvalidValue);
}

GRADRAIL_SIMULATED Result cuMemGetHandleForAddressRange(void* handle, DevicePointer address, size_t bytes, int type,
                                                        unsigned long long) {
  if (const Result late = late_error(); late != cuda::kSuccess) return late;
  const auto allocation = memory().find(address);
  if (!Machine::get().configuration().dma_buf) return cuda::kNotSupported;
  if (!allocation || type != cuda::kRangeHandleDmaBufFd || bytes == 0) return cuda::kInvalidValue;
  const uintptr_t end = allocation->address + allocation->bytes;
  if (address % 4096 != 0 || bytes % 4096 != 0 || address + bytes > end) return cuda::kInvalidValue;
  *static_cast<int*>(handle) = dup(allocation->fd);
  return cuda::kSuccess;
}

GRADRAIL_SIMULATED Result cuFlushGPUDirectRDMAWrites(int target, int scope) {
  const Ready ready;
  if (const Result error = ready.error(); error != cuda::kSuccess) return error;
  if (!Machine::get().configuration().flushes_writes) return cuda::kNotSupported;
  if (target != cuda::kFlushWritesTargetCurrentContext || scope < cuda::kWritesOrderingOwner)
    return cuda::kInvalidValue;
  // CUDA ignores a flush for readers that the ordering includes.
  if (scope > Machine::get().configuration().ordering) ready.device->unflushed = false;
  return cuda::kSuccess;
}
