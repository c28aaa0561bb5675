#include <atomic>
#include <memory>

#include "tests/gpu/simulated/api.h"
#include "tests/gpu/simulated/kernels.h"

using namespace gradrail::simulated;
using cuda::Result;

Result gradrail::simulated::refuse_in_capture(Stream& stream, Result refused) {
  if (refused == cuda::kSuccess || !stream.is_captured()) return cuda::kSuccess;
  stream.spoil_capture();
  return refused;
}

Result gradrail::simulated::refuse_launch_in_capture(Stream& stream) {
  return refuse_in_capture(stream, Machine::get().configuration().capture_result);
}

void gradrail::simulated::enqueue(Stream& stream, std::function<void()> operation) {
  stream.enqueue([&device = stream.device(), operation = std::move(operation)] {
    if (device.error == cuda::kSuccess) operation();
  });
}

namespace {

std::shared_ptr<Event> find_event(cuda::Event handle) {
  Machine& machine = Machine::get();
  const gradrail::MutexLock lock(machine.mutex);
  const auto found = machine.events.find(handle);
  return found == machine.events.end() ? nullptr : found->second;
}

}  // namespace

GRADRAIL_SIMULATED Result cuStreamCreate(cuda::Stream* handle, unsigned) {
  const Ready ready;
  if (const Result error = ready.error(); error != cuda::kSuccess) return error;
  auto stream = std::make_shared<Stream>(*ready.device);
  *handle = reinterpret_cast<cuda::Stream>(stream.get());
  const gradrail::MutexLock lock(Machine::get().mutex);
  Machine::get().streams[*handle] = std::move(stream);
  return cuda::kSuccess;
}

GRADRAIL_SIMULATED Result cuStreamDestroy_v2(cuda::Stream handle) {
  std::shared_ptr<Stream> stream;  // ends behind the lock: it finishes its operations first
  const gradrail::MutexLock lock(Machine::get().mutex);
  const auto found = Machine::get().streams.find(handle);
  if (found == Machine::get().streams.end()) return or_late_error(cuda::kInvalidHandle);
  stream = std::move(found->second);
  Machine::get().streams.erase(found);
  return or_late_error(cuda::kSuccess);
}

GRADRAIL_SIMULATED Result cuEventCreate(cuda::Event* handle, unsigned) {
  const Ready ready;
  if (const Result error = ready.error(); error != cuda::kSuccess) return error;
  auto event = std::make_shared<Event>();
  *handle = reinterpret_cast<cuda::Event>(event.get());
  const gradrail::MutexLock lock(Machine::get().mutex);
  Machine::get().events[*handle] = std::move(event);
  return cuda::kSuccess;
}

GRADRAIL_SIMULATED Result cuEventDestroy_v2(cuda::Event handle) {
  const gradrail::MutexLock lock(Machine::get().mutex);
  return or_late_error(Machine::get().events.erase(handle) == 1 ? cuda::kSuccess : cuda::kInvalidHandle);
}

GRADRAIL_SIMULATED Result cuEventRecord(cuda::Event handle, cuda::Stream stream) {
  const Ready ready;
  if (const Result error = ready.error(); error != cuda::kSuccess) return error;
  const std::shared_ptr<Event> event = find_event(handle);
  if (event == nullptr) return cuda::kInvalidHandle;
  if (const Result refused = refuse_in_capture(*stream_of(stream)); refused != cuda::kSuccess) return refused;
  uint64_t generation = 0;
  {
    const gradrail::MutexLock lock(event->mutex);
    generation = ++event->recorded;
  }
  // Also on a failed device: a stream that waits for the mark continues, and then sees the error.
  stream_of(stream)->enqueue([=] {
    const gradrail::MutexLock lock(event->mutex);
    event->completed = std::max(event->completed, generation);
    event->reached.notify_all();
  });
  return cuda::kSuccess;
}

GRADRAIL_SIMULATED Result cuEventQuery(cuda::Event handle) {
  const Ready ready;
  if (const Result error = ready.error(); error != cuda::kSuccess) return error;
  const std::shared_ptr<Event> event = find_event(handle);
  if (event == nullptr) return cuda::kInvalidHandle;
  const gradrail::MutexLock lock(event->mutex);
  return event->completed >= event->recorded ? cuda::kSuccess : cuda::kNotReady;
}

GRADRAIL_SIMULATED Result cuStreamWaitEvent(cuda::Stream stream, cuda::Event handle, unsigned) {
  const Ready ready;
  if (const Result error = ready.error(); error != cuda::kSuccess) return error;
  const std::shared_ptr<Event> event = find_event(handle);
  if (event == nullptr) return cuda::kInvalidHandle;
  if (const Result refused = refuse_in_capture(*stream_of(stream)); refused != cuda::kSuccess) return refused;
  uint64_t generation = 0;
  {
    const gradrail::MutexLock lock(event->mutex);
    generation = event->recorded;
  }
  stream_of(stream)->enqueue([=] {
    gradrail::MutexLock lock(event->mutex);
    while (event->completed < generation) event->reached.wait(lock);
  });
  return cuda::kSuccess;
}

GRADRAIL_SIMULATED Result cuStreamQuery(cuda::Stream stream) {
  const Ready ready;
  if (const Result error = ready.error(); error != cuda::kSuccess) return error;
  if (const Result refused = refuse_in_capture(*stream_of(stream)); refused != cuda::kSuccess) return refused;
  return stream_of(stream)->is_idle() ? cuda::kSuccess : cuda::kNotReady;
}

GRADRAIL_SIMULATED Result cuStreamWriteValue64_v2(cuda::Stream stream, cuda::DevicePointer address, uint64_t value,
                                                  unsigned flags) {
  const Ready ready;
  if (const Result error = ready.error(); error != cuda::kSuccess) return error;
  const AddressSpace& memory = Machine::get().memory();
  if (address % sizeof(value) != 0 || flags != 0 || !memory.is_pinned(address, sizeof(value)))
    return cuda::kInvalidValue;
  const Result refused = refuse_in_capture(*stream_of(stream), Machine::get().configuration().capture_write_result);
  if (refused != cuda::kSuccess) return refused;
  enqueue(*stream_of(stream), [&memory, address, value, device = ready.device] {
    if (memory.is_pinned(address, sizeof(value)))
      std::atomic_ref<uint64_t>(*reinterpret_cast<uint64_t*>(address)).store(value, std::memory_order_release);
    else
      device->error = cuda::kIllegalAddress;  // unpinned meanwhile
  });
  return cuda::kSuccess;
}

GRADRAIL_SIMULATED Result cuModuleLoadData(cuda::Module* module, const void* image) {
  const Ready ready;
  if (const Result error = ready.error(); error != cuda::kSuccess) return error;
  if (image == nullptr) return cuda::kInvalidValue;
  // The kernels are this library's own, whatever is in the image: gradrail may have been built without nvcc.
  if (Machine::get().configuration().image == "refuse") return cuda::kNoBinaryForGpu;
  if (Machine::get().configuration().image == "nojit") return cuda::kJitCompilerNotFound;
  auto loaded = std::make_unique<LoadedKernels>();
  *module = reinterpret_cast<cuda::Module>(loaded.get());
  const gradrail::MutexLock lock(Machine::get().mutex);
  Machine::get().modules[*module] = std::move(loaded);
  return cuda::kSuccess;
}

GRADRAIL_SIMULATED Result cuModuleUnload(cuda::Module module) {
  const gradrail::MutexLock lock(Machine::get().mutex);
  return or_late_error(Machine::get().modules.erase(module) == 1 ? cuda::kSuccess : cuda::kInvalidValue);
}

GRADRAIL_SIMULATED Result cuModuleGetFunction(cuda::Function* function, cuda::Module module, const char* name) {
  const Ready ready;
  if (const Result error = ready.error(); error != cuda::kSuccess) return error;
  const Kernel* kernel = find_kernel(name);
  if (kernel == nullptr) return cuda::kNotFound;
  // CUDA_MODULE_LOADING=LAZY, the default: to load a kernel may wait for the work of the device.
  if (reinterpret_cast<LoadedKernels*>(module)->insert(kernel).second) Machine::get().drain(*ready.device);
  *function = reinterpret_cast<cuda::Function>(const_cast<Kernel*>(kernel));
  return cuda::kSuccess;
}

GRADRAIL_SIMULATED Result cuLaunchKernel(cuda::Function function, unsigned grid_x, unsigned grid_y, unsigned grid_z,
                                         unsigned block_x, unsigned block_y, unsigned block_z, unsigned shared_bytes,
                                         cuda::Stream handle, void** arguments, void** extra) {
  const Ready ready;
  if (const Result error = ready.error(); error != cuda::kSuccess) return error;
  const bool is_flat = grid_y == 1 && grid_z == 1 && block_y == 1 && block_z == 1 && shared_bytes == 0 && !extra;
  if (!is_flat || grid_x == 0 || block_x == 0 || block_x > 1024) return cuda::kInvalidValue;
  if (const Result refused = refuse_launch_in_capture(*stream_of(handle)); refused != cuda::kSuccess) return refused;
  Device* device = ready.device;
  if (!stream_of(handle)->is_captured()) {
    ++Machine::get().started;
    Machine::get().last_blocks = static_cast<int>(grid_x);
    Machine::get().last_block_threads = static_cast<int>(block_x);
    Machine::get().check_flush(*device);
  }
  enqueue(*stream_of(handle), [device, run = bind_kernel(function, arguments), grid_x, block_x] {
    Machine::get().count_launch(*device);
    if (device->error != cuda::kSuccess) return;
    if (const Result error = run(grid_x, block_x); error != cuda::kSuccess) device->error = error;
  });
  return cuda::kSuccess;
}
