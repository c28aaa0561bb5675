#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "base/clock.h"
#include "ps/exchange_layout.h"
#include "ps/parameter_store.h"
#include "ps/protocol.h"
#include "ps/replica_receiver.h"
#include "transport/connection.h"
#include "transport/registration.h"

namespace gradrail::ps {

/// A data connection of a shard, from the moment it is accepted until it is closed.
/// Threads  Owner thread of the shard.
struct ShardPeer {
  enum class Phase : uint8_t {
    greeting,   ///< has not said Hello
    mapping,    ///< its memory is being mapped
    checking,   ///< welcome; its pattern has not arrived
    answering,  ///< its pattern was right; the transport had no room for ours yet
    standby,    ///< both patterns are on their way or there: may become active
    active,     ///< exchanges
    dismissed,  ///< is going to be closed
    replica,    ///< the shard that this one is the standby of
  };

  transport::Connection* connection = nullptr;
  size_t context_index = 0;
  Phase phase = Phase::greeting;
  std::string challenge;     ///< that its Hello answers
  TimePoint phase_deadline;  ///< but for active: then the connection is closed

  // Set once, by Hello.
  WorkerIndex worker = 0;
  uint64_t incarnation = 0;
  transport::RemoteRegion parameters_remote{};
  transport::RemoteRegion returns_remote{};
  transport::RemoteRegion gradients_remote{};
  bool gradients_offered = false;
  std::string device_key;      ///< of the worker's GPU memory; "": none is offered
  std::string device_refused;  ///< why that is not used
  std::string gpu_memory;      ///< how its NIC reaches the GPU memory behind parameters_remote; "": host memory
  uint64_t check_at = 0;       ///< where in there our pattern goes as well
  bool check_put = false;
  bool host_slots = false;  ///< whatever is possible
  uint64_t check_seed = 0;

  // The worker's memory, where the transport maps it, or the store's GPU a worker's; else null.
  float* parameters_mapped = nullptr;       ///< all elements of the model
  const float* gradients_mapped = nullptr;  ///< all elements of the model

  DeviceVariables device;  ///< behind the two above, where they are GPU memory
  bool on_device() const { return device.mapping != nullptr; }
  std::string mapped_text() const {
    if (on_device()) return " gpu-direct(ipc)";
    const std::string out = gpu_memory.empty() ? "" : " gpu-direct(" + gpu_memory + ")";
    if (payload.region != nullptr) return out + " into GPU memory";
    return gradients_mapped != nullptr ? " mapped" : out;
  }

  transport::RegisteredMemory slots;    ///< [SlotHeader × buckets][payload]
  transport::RegisteredMemory returns;  ///< [ReturnHeader × buckets], source of the way back
  struct Payload {
    DeviceSlots slots;
    std::unique_ptr<transport::MemoryRegion> region;  ///< null: it is behind the headers in `slots`
  } payload;                                          ///< in GPU memory, from the shard's first element on
  std::vector<PinnedRange> pinned;                    ///< slots and mapped memory; ends before they do

  std::vector<uint64_t> stored_version;  ///< per bucket: version already stored into parameters_mapped
  std::vector<TimePoint> arrived_at;     ///< per bucket, of its last push; empty: nobody ever waits in this mode
  std::deque<uint32_t> backlog;          ///< buckets whose answer the transport could not take yet
  std::vector<bool> parameters_sent;     ///< per bucket in backlog: only the header is missing

  std::unique_ptr<ReplicaReceiver> receiver;  ///< of a replica; its backlog are buckets to be answered

  /// housekeeping() has nothing to do for it.
  bool is_settled() const { return (phase == Phase::active || phase == Phase::replica) && backlog.empty(); }

  uint64_t bytes_in = 0;
  uint64_t bytes_out = 0;

  const SlotHeader* slot_headers() const { return reinterpret_cast<const SlotHeader*>(slots.memory.data()); }
  ReturnHeader* return_headers() const { return reinterpret_cast<ReturnHeader*>(returns.memory.data()); }
};

}  // namespace gradrail::ps
