#pragma once

#include <cstddef>
#include <cstdint>

// The part of the CUDA driver's binary interface that gradrail uses. With it this folder builds without a toolkit and
// runs without a driver. tests/gpu/abi_cuda_test.cc compares every line with <cuda.h> where that header is installed.

struct CUctx_st;  // global and named as the driver's header names them: a program may include both
struct CUmod_st;
struct CUfunc_st;
struct CUstream_st;
struct CUevent_st;
struct CUgraph_st;
struct CUgraphExec_st;

namespace gradrail::gpu::cuda {

// Handles are opaque pointers to the driver's objects; a device is a number, and its memory an integer address.
using Result = int;
using Device = int;
using DevicePointer = unsigned long long;
using Context = CUctx_st*;
using Module = CUmod_st*;
using Function = CUfunc_st*;
using Stream = CUstream_st*;
using Event = CUevent_st*;
using Graph = CUgraph_st*;
using GraphExec = CUgraphExec_st*;

/// Opaque bytes of CUipcMemHandle, which one process sends to another.
struct IpcMemoryHandle {
  char reserved[64];
};

// Results (CUresult, by the number of CUDA_ERROR_…). Names follow CUDA's; native_error.cc sorts them into lost devices,
// broken contexts and others.
inline constexpr Result kSuccess = 0;
inline constexpr Result kInvalidValue = 1;
inline constexpr Result kOutOfMemory = 2;
inline constexpr Result kNotInitialized = 3;
inline constexpr Result kDeinitialized = 4;
inline constexpr Result kStubLibrary = 34;
inline constexpr Result kDeviceUnavailable = 46;
inline constexpr Result kNoDevice = 100;
inline constexpr Result kInvalidDevice = 101;
// 200 to 226: kernel images, contexts, and errors that the hardware reports.
inline constexpr Result kInvalidImage = 200;
inline constexpr Result kInvalidContext = 201;
inline constexpr Result kNoBinaryForGpu = 209;
inline constexpr Result kEccUncorrectable = 214;
inline constexpr Result kPeerAccessUnsupported = 217;
inline constexpr Result kInvalidPtx = 218;
inline constexpr Result kNvlinkUncorrectable = 220;
inline constexpr Result kJitCompilerNotFound = 221;
inline constexpr Result kUnsupportedPtxVersion = 222;
inline constexpr Result kContained = 226;
inline constexpr Result kOperatingSystem = 304;
inline constexpr Result kInvalidHandle = 400;
inline constexpr Result kNotFound = 500;
// No error: cuEventQuery on work that has not ended.
inline constexpr Result kNotReady = 600;
// The following errors are mostly those of kernels. They appear in a later call, because launches are asynchronous.
inline constexpr Result kIllegalAddress = 700;
inline constexpr Result kLaunchOutOfResources = 701;
inline constexpr Result kLaunchTimeout = 702;
inline constexpr Result kContextIsDestroyed = 709;
inline constexpr Result kAssert = 710;
inline constexpr Result kTooManyPeers = 711;
inline constexpr Result kHostMemoryAlreadyRegistered = 712;
inline constexpr Result kHostMemoryNotRegistered = 713;
inline constexpr Result kHardwareStackError = 714;
inline constexpr Result kIllegalInstruction = 715;
inline constexpr Result kMisalignedAddress = 716;
inline constexpr Result kInvalidAddressSpace = 717;
inline constexpr Result kInvalidPc = 718;
inline constexpr Result kLaunchFailed = 719;
// The errors from 800 on concern system and MPS; those from 900 on concern graphs.
inline constexpr Result kNotPermitted = 800;
inline constexpr Result kNotSupported = 801;
inline constexpr Result kSystemNotReady = 802;
inline constexpr Result kSystemDriverMismatch = 803;
inline constexpr Result kCompatNotSupportedOnDevice = 804;
inline constexpr Result kMpsClientTerminated = 810;
inline constexpr Result kStreamCaptureUnsupported = 900;
inline constexpr Result kStreamCaptureInvalidated = 901;
inline constexpr Result kExternalDevice = 911;
inline constexpr Result kUnknown = 999;

// Attributes of a device (CUdevice_attribute).
inline constexpr int kMultiprocessorCount = 16;
inline constexpr int kIntegrated = 18;
inline constexpr int kUnifiedAddressing = 41;
inline constexpr int kComputeCapabilityMajor = 75;
inline constexpr int kComputeCapabilityMinor = 76;
inline constexpr int kCanUseHostPointerForRegisteredMemory = 91;
inline constexpr int kPageableMemoryUsesHostPageTables = 100;
// Older drivers lack the following attributes: a query fails there and counts as 0 (device.cc).
inline constexpr int kGpuDirectRdmaSupported = 116;
inline constexpr int kGpuDirectRdmaFlushWritesOptions = 117;
inline constexpr int kGpuDirectRdmaWritesOrdering = 118;
inline constexpr int kCanUse64BitStreamMemOps = 122;
inline constexpr int kDmaBufSupported = 124;

// Flags of streams, events, host memory and IPC.
inline constexpr unsigned kStreamNonBlocking = 1;
inline constexpr int kStreamCaptureRelaxed = 2;
inline constexpr unsigned kEventDisableTiming = 2;
inline constexpr unsigned kHostRegisterPortable = 1;
inline constexpr unsigned kHostRegisterDeviceMap = 2;
inline constexpr unsigned kIpcLazyEnablePeerAccess = 1;
inline constexpr int kRangeHandleDmaBufFd = 1;
// Attributes of an address (CUpointer_attribute) and their values.
inline constexpr int kPointerAttributeMemoryType = 2;
inline constexpr int kPointerAttributeSyncMemops = 6;
inline constexpr unsigned kMemoryTypeHost = 1;
inline constexpr unsigned kMemoryTypeDevice = 2;
// GPUDirect RDMA: how and for which reader the writes of a NIC are flushed or ordered.
inline constexpr int kFlushWritesOptionHost = 1;
inline constexpr int kWritesOrderingOwner = 100;
inline constexpr int kWritesOrderingAllDevices = 200;
inline constexpr int kFlushWritesTargetCurrentContext = 0;
inline constexpr int kFlushWritesToAllDevices = 200;

/// Functions, by the names of their symbols, that every driver we accept has. All answer a Result.
#define GRADRAIL_CUDA_REQUIRED(X)                                                                              \
  X(cuInit, (unsigned flags))                                                                                  \
  X(cuDriverGetVersion, (int* version))                                                                        \
  X(cuGetErrorName, (Result result, const char** name))                                                        \
  X(cuGetErrorString, (Result result, const char** text))                                                      \
  X(cuDeviceGetCount, (int* count))                                                                            \
  X(cuDeviceGet, (Device * device, int ordinal))                                                               \
  X(cuDeviceGetName, (char* name, int bytes, Device device))                                                   \
  X(cuDeviceGetPCIBusId, (char* address, int bytes, Device device))                                            \
  X(cuDeviceGetAttribute, (int* value, int attribute, Device device))                                          \
  X(cuDeviceTotalMem_v2, (size_t * bytes, Device device))                                                      \
  X(cuDevicePrimaryCtxRetain, (Context * context, Device device))                                              \
  X(cuDevicePrimaryCtxRelease_v2, (Device device))                                                             \
  X(cuCtxSetCurrent, (Context context))                                                                        \
  X(cuMemAlloc_v2, (DevicePointer * address, size_t bytes))                                                    \
  X(cuMemFree_v2, (DevicePointer address))                                                                     \
  X(cuMemGetInfo_v2, (size_t * free_bytes, size_t * total_bytes))                                              \
  X(cuMemGetAddressRange_v2, (DevicePointer * base, size_t * bytes, DevicePointer address))                    \
  X(cuMemHostRegister_v2, (void* data, size_t bytes, unsigned flags))                                          \
  X(cuMemHostUnregister, (void* data))                                                                         \
  X(cuMemcpyAsync, (DevicePointer to, DevicePointer from, size_t bytes, Stream stream))                        \
  X(cuMemsetD32Async, (DevicePointer to, unsigned value, size_t count, Stream stream))                         \
  X(cuPointerGetAttribute, (void* value, int attribute, DevicePointer address))                                \
  X(cuPointerSetAttribute, (const void* value, int attribute, DevicePointer address))                          \
  X(cuStreamCreate, (Stream * stream, unsigned flags))                                                         \
  X(cuStreamDestroy_v2, (Stream stream))                                                                       \
  X(cuStreamWaitEvent, (Stream stream, Event event, unsigned flags))                                           \
  X(cuStreamQuery, (Stream stream))                                                                            \
  X(cuEventCreate, (Event * event, unsigned flags))                                                            \
  X(cuEventDestroy_v2, (Event event))                                                                          \
  X(cuEventRecord, (Event event, Stream stream))                                                               \
  X(cuEventQuery, (Event event))                                                                               \
  X(cuModuleLoadData, (Module * module, const void* image))                                                    \
  X(cuModuleUnload, (Module module))                                                                           \
  X(cuModuleGetFunction, (Function * function, Module module, const char* name))                               \
  X(cuLaunchKernel,                                                                                            \
    (Function function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x, unsigned block_y, \
     unsigned block_z, unsigned shared_bytes, Stream stream, void** arguments, void** extra))                  \
  X(cuIpcGetMemHandle, (IpcMemoryHandle * handle, DevicePointer address))                                      \
  X(cuIpcOpenMemHandle_v2, (DevicePointer * address, IpcMemoryHandle handle, unsigned flags))                  \
  X(cuIpcCloseMemHandle, (DevicePointer address))

/// Functions of later drivers or of some platforms: null where the driver has none.
#define GRADRAIL_CUDA_OPTIONAL(X)                                                                    \
  X(cuMemGetHandleForAddressRange,                                                                   \
    (void* handle, DevicePointer address, size_t bytes, int handle_type, unsigned long long flags))  \
  X(cuFlushGPUDirectRDMAWrites, (int target, int scope))                                             \
  X(cuStreamWriteValue64_v2, (Stream stream, DevicePointer address, uint64_t value, unsigned flags)) \
  X(cuStreamBeginCapture_v2, (Stream stream, int mode))                                              \
  X(cuStreamEndCapture, (Stream stream, Graph * graph))                                              \
  X(cuGraphDestroy, (Graph graph))                                                                   \
  X(cuGraphInstantiateWithFlags, (GraphExec * executable, Graph graph, unsigned long long flags))    \
  X(cuGraphLaunch, (GraphExec executable, Stream stream))                                            \
  X(cuGraphExecDestroy, (GraphExec executable))

/// Table of the functions above. Pointers are null until Driver::load() has filled them.
struct Functions {
// A declaration has no place for parentheses. NOLINTNEXTLINE(bugprone-macro-parentheses)
#define GRADRAIL_DECLARE(name, parameters) Result(*name) parameters = nullptr;
  GRADRAIL_CUDA_REQUIRED(GRADRAIL_DECLARE)
  GRADRAIL_CUDA_OPTIONAL(GRADRAIL_DECLARE)
#undef GRADRAIL_DECLARE
};

}  // namespace gradrail::gpu::cuda
