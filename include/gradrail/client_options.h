#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "gradrail/clock.h"
#include "gradrail/cluster.h"
#include "gradrail/export.h"
#include "gradrail/memory_span.h"
#include "gradrail/mode.h"
#include "gradrail/optimizer.h"
#include "gradrail/schema.h"
#include "gradrail/security.h"
#include "gradrail/trace.h"
#include "gradrail/wait_policy.h"

namespace gradrail {

/// Formats of the elements on the network. Equal on all workers.
struct CompressionOptions {
  PushFormat push = PushFormat::fp32;         ///< others than fp32: DeviceBlock needs room for packed gradients
  ReturnFormat returns = ReturnFormat::fp32;  ///< others than fp32: variables are in host memory at both ends
};

/// Data connections to the shards.
struct TransportOptions {
  std::vector<std::string> order = {"shm", "ucx", "ofi", "tcp"};  ///< names in order of preference
  bool rdma_only = true;                                          ///< ucx and ofi: not without an RDMA device
  std::string ofi_provider;                          ///< libfabric's name of the provider to use; "": the best
  Duration path_timeout = std::chrono::seconds(10);  ///< a path that acknowledges nothing for so long is lost
  bool fallback = true;                              ///< false: the first refusal of a transport is an error
  bool require_rdma = false;                         ///< a path that no RDMA device carries is refused
  Duration failback = std::chrono::seconds(30);      ///< interval of trials of better paths after a move; zero: none
  bool checksums = false;                            ///< CRC32C over every payload, both ways
  std::string bind_host;  ///< this host's address for network connections; "": the kernel's choice
  bool rails = true;      ///< stripes buckets over the network interfaces that a shard offers; false: over one of them
  uint32_t streams = 0;   ///< TCP connections on each rail; 0: one, and more on a link of 40 Gb/s and above. At most 64
  WaitPolicy wait = kAdaptiveWait;  ///< how long Client::wait() spins before it blocks
};

/// Waits for ps tasks that start, and the remedies for those that are lost.
struct RecoveryOptions {
  std::vector<std::string> backups;  ///< "host:port" of each ps task's backup, in the same order; empty: no backups
  Duration join_timeout = std::chrono::minutes(30);  ///< time limit for the start of all ps tasks
  Duration rejoin_timeout = Duration::zero();        ///< time limit for the restart of a lost ps task; zero: no wait
  /// The current address of a ps task, called before each attempt to reach it. It may start on any host. The backups
  /// have the indexes behind those of `cluster.ps`. NOT_FOUND and UNAVAILABLE mean that the address is not known yet;
  /// the client tries again. Empty: the addresses in `cluster` and `backups`.
  std::function<absl::StatusOr<std::string>(uint32_t ps_index)> ps_address = {};
};

/// How gradients leave a GPU and parameters reach it. Names are those of --gpu-direct.
enum class GpuTransfer : uint8_t {
  ipc,          ///< the shard's GPU reads and stores them in the worker's GPU memory
  dma_buf,      ///< a network device reads and writes GPU memory, as a dma-buf
  peer_memory,  ///< … by a kernel module (nvidia-peermem)
  staged,       ///< copied through pinned host memory, bucket by bucket
};
GRADRAIL_EXPORT const char* gpu_transfer_name(GpuTransfer way);

/// The places of a model's variables in a block of GPU memory: [parameters][gap][gradients][room of the client]. In both
/// the tensors follow each other in the order of the schema. One of another fragment than the tensor before begins at a
/// multiple of 64 elements.
struct DeviceLayout {
  uint64_t gradients_at = 0;  ///< elements from the first parameter to the first gradient
  uint64_t bytes = 0;         ///< of the block
};
GRADRAIL_EXPORT DeviceLayout device_layout(const Schema& schema, PushFormat push = PushFormat::fp32);

/// A worker's variables in one block of a GPU's memory, which outlives the client. The memory belongs to the primary
/// context of the GPU, as that of cudaMalloc(). A ps on this host may map the whole allocation with the block: of 2 MiB
/// or a multiple, it has no other data.
/// Streams  The client uses its own. Before Client::ready() and exchange() the program waits until its stream has written
///          the gradient, for example with cudaEventSynchronize(). After Client::wait() the fresh parameters are in the
///          block, for kernels on any stream.
struct DeviceBlock {
  int ordinal = 0;              ///< of the GPU in this process, as cudaGetDevice() has it
  float* parameters = nullptr;  ///< address on the GPU; null: variables are in host memory
  float* gradients = nullptr;   ///< DeviceLayout::gradients_at behind the parameters
  /// From the first parameter on, as DeviceLayout::bytes. In a smaller block packed gradients are an error; where only
  /// the last 32 KiB are missing, gradients are staged.
  size_t bytes = 0;
};

/// Memory of parameters and gradients.
struct PlacementOptions {
  DeviceBlock device;  ///< the variables of a model that computes on a GPU
  /// The ways to try with each shard, in this order, before staging.
  std::vector<GpuTransfer> gpu_transfers = {GpuTransfer::ipc, GpuTransfer::dma_buf, GpuTransfer::peer_memory};
  bool require_device = false;  ///< staging is an error
  MemoryBinder place_memory;    ///< called for parameters, gradients and headers before their first use
};

/// Functions and flags of the program that the client calls and reads. Each may be empty.
struct ClientHooks {
  /// Receives every 10 s the peers that this worker waits for. Empty: they are logged as warnings.
  std::function<void(const std::string&)> log;
  const std::atomic<bool>* stop = nullptr;  ///< becoming true ends joining and, after 2 s, waiting: CANCELLED
  /// Called in the owner thread while a call of it blocks, about twice a second. True ends the call at once: CANCELLED.
  std::function<bool()> interrupted;
  /// Called in the owner thread when the fresh parameters of a part of the model have arrived, with the updates applied
  /// to them. They stay until the next gradient of this part is ready.
  /// Units  elements of the flattened model.
  std::function<void(uint64_t first, uint64_t count, uint64_t version)> on_arrived;
  size_t marks = 0;  ///< capacity of the flight recorder, in marks; 0: off
  /// Called in the owner thread with the recorder's marks, while this worker exchanges or waits. The call follows
  /// within a second of a request at a ps, or of an increase of `*dump_signals`.
  std::function<void(const std::vector<Mark>&)> dump;
  const std::atomic<uint32_t>* dump_signals = nullptr;
};

/// Options of one worker. All workers of a run must agree on mode, optimizer, compression, bucket_bytes and agreement.
struct ClientOptions {
  ClusterSpec cluster;
  uint32_t task_index = 0;  ///< worker 0 is the chief
  Mode mode;                ///< the cluster has the number of workers; `mode.worker_count` has no effect
  OptimizerConfig optimizer;
  uint32_t bucket_bytes = 0;  ///< a multiple of 64; 0: by the size of the model, 256 KiB to 1 MiB
  std::string agreement;      ///< not async: further settings that all workers must share, as a text that is compared
  CompressionOptions compression;
  TransportOptions transport;
  Security security;
  RecoveryOptions recovery;
  PlacementOptions placement;
  ClientHooks hooks;
};

}  // namespace gradrail
