#include "tests/gpu/simulated/machine.h"

#include <chrono>

namespace gradrail::simulated {
namespace {

constexpr int kMostDevices = 16;
thread_local Device* current = nullptr;

}  // namespace

Device* current_device() { return current; }
void set_current_device(Device* device) { current = device; }

Stream::~Stream() {
  {
    const MutexLock lock(mutex_);
    ends_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void Stream::enqueue(std::function<void()> operation) {
  {
    const MutexLock lock(mutex_);
    if (capture_ != nullptr) {
      capture_->operations.push_back(std::move(operation));
      return;
    }
    operations_.push_back(std::move(operation));
  }
  changed_.notify_all();
}

bool Stream::is_idle() {
  const MutexLock lock(mutex_);
  return operations_.empty();
}

bool Stream::begin_capture() {
  const MutexLock lock(mutex_);
  if (capture_ != nullptr) return false;
  capture_ = std::make_unique<Graph>();
  spoilt_ = false;
  return true;
}

bool Stream::is_captured() {
  const MutexLock lock(mutex_);
  return capture_ != nullptr;
}

void Stream::spoil_capture() {
  const MutexLock lock(mutex_);
  spoilt_ = true;
}

std::unique_ptr<Graph> Stream::end_capture() {
  const MutexLock lock(mutex_);
  std::unique_ptr<Graph> graph = std::move(capture_);
  if (spoilt_) graph.reset();
  return graph;
}

void Stream::drain() {
  MutexLock lock(mutex_);
  while (!operations_.empty()) changed_.wait(lock);
}

void Stream::run() {
  set_current_device(&device_);
  for (;;) {
    std::function<void()> operation;
    {
      MutexLock lock(mutex_);
      while (!ends_ && operations_.empty()) changed_.wait(lock);
      if (operations_.empty()) return;
      operation = operations_.front();
    }
    if (const int delay = Machine::get().configuration().delay_us; delay > 0) {
      std::this_thread::sleep_for(std::chrono::microseconds(delay));
    }
    while (device_.hangs) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    operation();
    {
      const MutexLock lock(mutex_);
      operations_.pop_front();
    }
    changed_.notify_all();
  }
}

Machine& Machine::get() {
  static Machine& machine = *new Machine;
  return machine;
}

Machine::Machine() {
  for (int ordinal = 0; ordinal < kMostDevices; ++ordinal) {
    devices_.push_back(std::make_unique<Device>());
    devices_.back()->ordinal = ordinal;
  }
  configure(Configuration::from_environment());
}

void Machine::configure(const Configuration& configuration) {
  configuration_ = configuration;
  for (const auto& device : devices_) {
    device->error = gpu::cuda::kSuccess;
    device->hangs = device->stalls = false;
    device->unflushed = false;
    device->launches = 0;
  }
}

Device* Machine::device(int ordinal) {
  if (ordinal < 0 || ordinal >= configuration_.devices || ordinal >= kMostDevices) return nullptr;
  return devices_[static_cast<size_t>(ordinal)].get();
}

bool Machine::take_memory(Device& device, size_t bytes) {
  const size_t total = configuration_.memory_bytes;
  if (bytes > total) return false;
  if (device.used_bytes.fetch_add(bytes) <= total - bytes) return true;
  device.used_bytes -= bytes;
  return false;
}

void Machine::count_launch(Device& device) {
  const uint64_t launch = ++device.launches;
  const auto due = [&](const std::map<int, uint64_t>& when) {
    const auto found = when.find(device.ordinal);
    return found != when.end() && found->second == launch;
  };
  if (due(configuration_.lose)) device.error = gpu::cuda::kUnknown;
  if (due(configuration_.fault)) device.error = gpu::cuda::kIllegalAddress;
  if (due(configuration_.hang)) device.hangs = true;
  if (!due(configuration_.stall)) return;
  device.stalls = true;
  while (device.stalls) std::this_thread::sleep_for(std::chrono::milliseconds(1));
}

void Machine::check_flush(Device& device) {
  if (!configuration_.orders_writes() && device.unflushed) device.error = gpu::cuda::kIllegalAddress;
}

void Machine::drain(Device& device) {
  std::map<gpu::cuda::Stream, std::shared_ptr<Stream>> all;
  {
    const MutexLock lock(mutex);
    all = streams;
  }
  for (const auto& [handle, stream] : all) {
    if (&stream->device() == &device) stream->drain();
  }
}

void Machine::drain_with_peers(Device& device) {
  for (const auto& peer : devices_) {
    if (peer.get() == &device || !peer->hangs) drain(*peer);
  }
}

}  // namespace gradrail::simulated
