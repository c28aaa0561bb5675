#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "base/mutex.h"
#include "gpu/driver/cuda_abi.h"
#include "tests/gpu/simulated/address_space.h"
#include "tests/gpu/simulated/configuration.h"
#include "tests/gpu/simulated/kernels.h"

namespace gradrail::simulated {

using gpu::cuda::Result;

/// A mark: reached once the stream has got as far as the record that was the newest when it was asked for.
struct Event {
  Mutex mutex;
  ConditionVariable reached;
  uint64_t recorded ABSL_GUARDED_BY(mutex) = 0;
  uint64_t completed ABSL_GUARDED_BY(mutex) = 0;
};

/// What a module handle points to: the kernels that its device has loaded so far.
using LoadedKernels = std::set<const Kernel*>;

/// The operations of a captured stream. Executables are copies.
struct Graph {
  std::vector<std::function<void()>> operations;
};

struct Device {
  int ordinal = 0;
  std::atomic<Result> error = gpu::cuda::kSuccess;  ///< lasting: everything answers it from then on
  std::atomic<bool> hangs = false;
  std::atomic<bool> stalls = false;
  std::atomic<bool> unflushed = false;  ///< a NIC has written, and no flush has followed
  std::atomic<uint64_t> launches = 0;
  std::atomic<size_t> used_bytes = 0;
  std::atomic<int> retained = 0;
  std::atomic<size_t> context_bytes = 0;  ///< of used_bytes, while it is retained
};

/// Operations in order on a thread of their own, so that an operation is not complete by chance before a wait for it.
class Stream {
 public:
  explicit Stream(Device& device) : device_(device), thread_([this] { run(); }) {}
  ~Stream();

  Device& device() { return device_; }
  void enqueue(std::function<void()> operation);
  void drain();
  bool is_idle();
  /// From now on operations are kept and do not run. False: it is captured already.
  bool begin_capture();
  bool is_captured();
  /// A call that a capture does not permit has come: the capture ends without a graph.
  void spoil_capture();
  /// Null: it is not captured, or the capture is spoilt.
  std::unique_ptr<Graph> end_capture();

 private:
  void run();

  Device& device_;
  Mutex mutex_;
  ConditionVariable changed_;
  std::deque<std::function<void()>> operations_ ABSL_GUARDED_BY(mutex_);  ///< the first is being done
  bool ends_ ABSL_GUARDED_BY(mutex_) = false;
  std::unique_ptr<Graph> capture_ ABSL_GUARDED_BY(mutex_);
  bool spoilt_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

/// The whole state of the driver. It is never destroyed: streams of a program that just ends still run.
class Machine {
 public:
  static Machine& get();

  void configure(const Configuration& configuration);
  const Configuration& configuration() const { return configuration_; }
  Device* device(int ordinal);
  /// False when the device has not so much memory left.
  bool take_memory(Device& device, size_t bytes);
  AddressSpace& memory() { return memory_; }

  /// Counts a launch of the device and lets happen what the configuration has for it.
  void count_launch(Device& device);
  /// Called by a thread that launches. A NIC wrote and no flush followed: the device fails, because the simulation does
  /// not know the bytes that a kernel reads. The check precedes the launch: later another write may arrive.
  void check_flush(Device& device);
  /// Waits for every stream of the device.
  void drain(Device& device);
  /// Also for those of its peers, but the ones that hang: theirs are another test's concern.
  void drain_with_peers(Device& device);

  Mutex mutex;
  /// Shared with threads that wait for one of them while its owner ends it.
  std::map<gpu::cuda::Stream, std::shared_ptr<Stream>> streams ABSL_GUARDED_BY(mutex);
  std::map<gpu::cuda::Event, std::shared_ptr<Event>> events ABSL_GUARDED_BY(mutex);
  std::map<gpu::cuda::Graph, std::shared_ptr<Graph>> graphs ABSL_GUARDED_BY(mutex);
  std::map<gpu::cuda::GraphExec, std::shared_ptr<Graph>> executables ABSL_GUARDED_BY(mutex);
  /// One of a device that is lost is never unloaded.
  std::map<gpu::cuda::Module, std::unique_ptr<LoadedKernels>> modules ABSL_GUARDED_BY(mutex);
  std::atomic<int> started = 0;
  std::atomic<int> pageable_copies = 0;
  std::atomic<int> last_blocks = 0;
  std::atomic<int> last_block_threads = 0;

 private:
  Machine();
  Configuration configuration_;
  std::vector<std::unique_ptr<Device>> devices_;
  AddressSpace memory_;
};

/// The calling thread's device, null before cuCtxSetCurrent.
Device* current_device();
void set_current_device(Device* device);

}  // namespace gradrail::simulated
