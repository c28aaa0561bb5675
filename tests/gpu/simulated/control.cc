#include "tests/gpu/simulated/control.h"

#include <memory>

#include "tests/gpu/simulated/api.h"

using namespace gradrail::simulated;

void gradrail_simulated_configure(const char* words) { Machine::get().configure(Configuration::parse(words)); }

void gradrail_simulated_objects(SimulatedObjects* objects) {
  Machine& machine = Machine::get();
  const gradrail::MutexLock lock(machine.mutex);
  int contexts = 0;
  for (int ordinal = 0; Device* device = machine.device(ordinal); ++ordinal) contexts += device->retained;
  *objects = {.allocations = machine.memory().count(),
              .pins = machine.memory().pins(),
              .streams = static_cast<int>(machine.streams.size()),
              .events = static_cast<int>(machine.events.size()),
              .modules = static_cast<int>(machine.modules.size()),
              .contexts = contexts,
              .graphs = static_cast<int>(machine.graphs.size() + machine.executables.size()),
              .started = machine.started,
              .pageable_copies = machine.pageable_copies,
              .last_blocks = machine.last_blocks,
              .last_block_threads = machine.last_block_threads};
}

void gradrail_simulated_release_hang() {
  for (int ordinal = 0; Device* device = Machine::get().device(ordinal); ++ordinal) {
    device->hangs = device->stalls = false;
    Machine::get().drain(*device);
  }
}

int gradrail_simulated_hangs() {
  for (int ordinal = 0; Device* device = Machine::get().device(ordinal); ++ordinal) {
    if (device->hangs || device->stalls) return 1;
  }
  return 0;
}

void gradrail_simulated_nic_wrote(const void* data) {
  const auto allocation = Machine::get().memory().find(reinterpret_cast<uintptr_t>(data));
  if (allocation) allocation->device->unflushed = true;
}

int gradrail_simulated_launch(CUstream_st* handle, void (*operation)(void*), void* argument, void (*release)(void*)) {
  const std::shared_ptr<void> owned(argument, release);
  const Ready ready;
  if (const Result error = ready.error(); error != cuda::kSuccess) return error;
  Stream& stream = *stream_of(handle);
  if (const Result refused = refuse_launch_in_capture(stream); refused != cuda::kSuccess) return refused;
  if (!stream.is_captured()) {
    ++Machine::get().started;
    Machine::get().check_flush(stream.device());
  }
  // Run even on a device that failed: peers of an all-reduce wait for it.
  stream.enqueue([&stream, operation, owned] {
    Machine::get().count_launch(stream.device());
    operation(owned.get());
  });
  return cuda::kSuccess;
}

int gradrail_simulated_is_captured(CUstream_st* stream) { return stream_of(stream)->is_captured() ? 1 : 0; }

int gradrail_simulated_current() {
  const Device* device = current_device();
  return device == nullptr ? -1 : device->ordinal;
}

void gradrail_simulated_fail(CUstream_st* stream, int result) { stream_of(stream)->device().error = result; }

int gradrail_simulated_error(CUstream_st* stream) { return stream_of(stream)->device().error; }

int gradrail_simulated_is_usable(const void* data, size_t bytes) {
  const AddressSpace& memory = Machine::get().memory();
  const auto address = reinterpret_cast<uintptr_t>(data);
  return memory.contains(address) ? memory.is_usable(address, bytes) : memory.is_pinned(address, bytes);
}
