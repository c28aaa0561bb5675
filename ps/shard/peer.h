#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "gradrail/clock.h"
#include "ps/protocol/exchange_layout.h"
#include "ps/protocol/mode.h"
#include "ps/protocol/push_format.h"
#include "ps/replication/backup_receiver.h"
#include "ps/shard/return_encoder.h"
#include "ps/store/store_device.h"
#include "transport/connection.h"
#include "transport/prepared_puts.h"
#include "transport/registration.h"

namespace gradrail::ps {

/// A data connection of a shard, from its acceptance until it is closed.
/// Threads  Owner thread of the shard.
struct ShardPeer {
  /// handshake → mapping → checking → answering → validated → active, or handshake → primary; then removed.
  enum class Phase : uint8_t {
    handshake,  ///< no JoinPath has arrived
    mapping,    ///< the transport maps the worker's memory
    checking,   ///< Welcome was sent; the worker's pattern has not arrived
    answering,  ///< the worker's pattern was right; the transport had no room for the shard's pattern yet
    validated,  ///< both patterns are under way or have arrived: the worker may activate the connection
    active,     ///< exchanges
    primary,    ///< the primary of this shard
    closing,    ///< is closed at the deadline
  };

  transport::Connection* connection = nullptr;
  size_t context_index = 0;
  Phase phase = Phase::handshake;
  TimePoint phase_deadline;  ///< the connection is closed then; not used in active and primary
  std::string challenge;     ///< the proof in JoinPath answers it

  // Set once, by JoinPath.
  WorkerIndex worker = 0;
  uint64_t incarnation = 0;
  struct Offer {
    transport::RemoteRegion parameters{};
    transport::RemoteRegion returns{};
    transport::RemoteRegion gradients{};
    bool has_gradients = false;
    std::string device_key;     ///< key of the worker's GPU memory; "": none is offered, or it was tried
    std::string gpu_memory;     ///< way of the worker's NIC to GPU memory behind `parameters`; "": host memory
    uint64_t check_offset = 0;  ///< offset in `parameters` of the shard's pattern, which `returns` gets too
    uint64_t check_seed = 0;
    bool host_slots = false;  ///< the worker requires its slots in host memory
  } offer;
  uint32_t check_lane = 0;     ///< the lane that is checked
  bool is_check_put = false;   ///< the pattern for GPU memory was posted
  std::string device_refused;  ///< reason for not using device_key

  // The worker's memory where the transport maps it, or the store's GPU maps the worker's; else null.
  float* parameters_mapped = nullptr;       ///< [elements of the model]
  const float* gradients_mapped = nullptr;  ///< [elements of the model]
  DeviceVariables device;                   ///< source of the two above when they are GPU memory

  transport::RegisteredMemory slots;    ///< [SlotHeader × buckets][payload]
  transport::RegisteredMemory returns;  ///< [ReturnHeader × buckets], source of the way back
  struct Payload {
    DeviceSlots slots;  ///< [elements of the shard]
    std::unique_ptr<transport::MemoryRegion> region;
  } payload;                        ///< place in GPU memory; no region: the payload is behind the headers in `slots`
  std::vector<PinnedRange> pinned;  ///< slots and mapped memory; ends before they do

  std::unique_ptr<ReturnEncoder> encoder;  ///< packs answers into `slots`; null: they are fp32

  /// What is the same in each step of a bucket. Made when the peer becomes active.
  struct Lane {
    SlotHeader expected{};  ///< of a push without rare features; step, base version and rate differ
    const float* gradient = nullptr;
    float* target = nullptr;  ///< in the worker's memory; null: the parameters are put
    size_t offset = 0;        ///< of the bucket in the shard
    size_t count = 0;
    std::unique_ptr<transport::PreparedPuts> answer;  ///< of parameters that are not copied; null: not prepared
  };
  std::vector<Lane> lanes;     ///< indexed by bucket; empty: the parameters are on a GPU
  bool may_push_lone = false;  ///< no rare feature of the run or of this peer is on

  std::vector<uint64_t> stored_version;  ///< version stored into parameters_mapped since the last request, per bucket
  std::vector<TimePoint> arrived_at;     ///< arrival of the last push of each bucket; empty in a mode without waiting
  std::deque<uint32_t> backlog;          ///< buckets with an answer that the transport could not take yet
  std::vector<size_t> posted;            ///< puts of the last answer that the transport has taken, per bucket
  bool is_counted_unsettled = false;     ///< PeerTable::update_unsettled()

  std::unique_ptr<BackupReceiver> receiver;  ///< receiver in phase primary; `backlog` then has buckets to acknowledge

  uint64_t bytes_in = 0;
  uint64_t bytes_out = 0;
  bool is_in_steps = false;  ///< an update has had its gradient, over this connection

  bool is_on_device() const { return device.mapping != nullptr; }
  /// Gradients arrive in the store's GPU memory.
  bool uses_gpu() const { return payload.region != nullptr; }
  /// Packed parameters leave from host memory, whichever way the gradients take.
  bool answers_leave_gpu() const { return uses_gpu() && encoder == nullptr; }
  /// The event loop has nothing to continue for this peer.
  bool is_settled() const { return (phase == Phase::active || phase == Phase::primary) && backlog.empty(); }

  /// The parameter of an element of the model. parameters_mapped is not null.
  float* mapped_parameter(uint64_t element) const { return parameters_mapped + element; }
  /// The gradient of an element of the model in this format. gradients_mapped is not null.
  const std::byte* mapped_gradient(uint64_t model_elements, uint64_t element, PushFormat format) const {
    return reinterpret_cast<const std::byte*>(gradients_mapped) + gradient_at(model_elements, element, format);
  }

  const SlotHeader* slot_headers() const { return reinterpret_cast<const SlotHeader*>(slots.memory.data()); }
  ReturnHeader* return_headers() const { return reinterpret_cast<ReturnHeader*>(returns.memory.data()); }

  /// Access to the memory, for logs behind the path's name: " mapped", " gpu-direct(ipc)", "".
  std::string mapped_text() const {
    if (is_on_device()) return " gpu-direct(ipc)";
    const std::string out = offer.gpu_memory.empty() ? "" : " gpu-direct(" + offer.gpu_memory + ")";
    if (uses_gpu()) return out + " into GPU memory";
    return gradients_mapped != nullptr ? " mapped" : out;
  }
};

}  // namespace gradrail::ps
