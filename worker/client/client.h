#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "base/clock.h"
#include "base/export.h"
#include "base/flight_recorder.h"
#include "base/histogram.h"
#include "base/memory_span.h"
#include "ps/protocol/cluster_spec.h"
#include "ps/protocol/mode.h"
#include "ps/protocol/optimizer_settings.h"
#include "ps/protocol/schema.h"
#include "ps/protocol/security.h"
#include "transport/registration_budget.h"
#include "transport/wait_policy.h"

namespace gradrail::gpu {
class Compute;
}

namespace gradrail::ps {
class ControlDialer;
}

namespace gradrail::worker {

/// How gradients leave a GPU and parameters reach it. Names are those of --gpu-direct.
enum class GpuTransfer : uint8_t {
  ipc,          ///< the shard's GPU reads and stores them in the worker's GPU memory
  dma_buf,      ///< a network device reads and writes GPU memory, as a dma-buf
  peer_memory,  ///< … by a kernel module (nvidia-peermem)
  staged,       ///< copied through pinned host memory, bucket by bucket
};
GRADRAIL_EXPORT const char* name_of(GpuTransfer way);

/// A worker's variables in one block of its GPU's memory, in the order of the schema (ps/protocol/exchange_layout.h).
struct DeviceMemory {
  gpu::Compute* device = nullptr;  ///< null: variables are in host memory. Outlives the client, which calls it
  float* parameters = nullptr;
  float* gradients = nullptr;
  /// From the first parameter on: ps::device_block_bytes(elements, push). In a smaller block the packed gradients have
  /// no room, which is an error, or the patterns of checks have none, and gradients are staged.
  size_t bytes = 0;
  std::string key;  ///< gpu::export_memory() of the whole block; "": other processes cannot map it
  std::string why_no_key;
};

/// Options of one worker. All workers of a run must agree on mode, mode_bound, mode_grace, mode_drops_late, optimizer, push,
/// returns, bucket_bytes and agreement.
struct ClientOptions {
  // The run.
  ps::ClusterSpec cluster;
  std::vector<std::string> backups;  ///< "host:port" of each ps task's backup, in the same order; empty: no backups
  uint32_t task_index = 0;           ///< worker 0 is the chief
  ps::ModeKind mode = ps::ModeKind::async;
  uint32_t mode_bound = 0;       ///< K of ssp:K, K of quorum:K
  ps::Grace mode_grace{};        ///< quorum only
  bool mode_drops_late = false;  ///< quorum only
  ps::OptimizerConfig optimizer;
  /// The elements of a gradient on its way. With another format than fp32, `device` needs room for packed gradients.
  ps::PushFormat push = ps::PushFormat::fp32;
  /// The elements of parameters on their way back. Others than fp32 need variables in host memory, at both ends.
  ps::ReturnFormat returns = ps::ReturnFormat::fp32;
  uint32_t bucket_bytes = 0;  ///< a multiple of 64; 0: ps::ShardMap::default_bucket_bytes()
  std::string agreement;      ///< not async: further settings that all workers must share, as a text that is compared

  // Data connections.
  std::vector<std::string> transports = {"shm", "ucx", "ofi", "tcp"};  ///< in order of preference
  bool rdma_only = true;                                               ///< ucx and ofi: not without an RDMA device
  std::string ofi_provider;                          ///< libfabric's name of the provider to use; "": the best
  Duration path_timeout = std::chrono::seconds(10);  ///< a path that acknowledges nothing for so long is lost
  bool fallback = true;                              ///< false: the first refusal of a transport is an error
  bool require_rdma = false;                         ///< a path that no RDMA device carries is refused
  Duration failback = std::chrono::seconds(30);      ///< after a move, how often better paths are tried; zero: never
  bool checksums = false;                            ///< CRC32C over every payload, both ways
  ps::Security security;
  std::shared_ptr<ps::ControlDialer> dialer;  ///< of control connections; null: gRPC. Simulations replace it
  std::string bind_host;                      ///< this host's address for network connections; "": the kernel's choice
  bool rails = true;     ///< stripes buckets over the network interfaces that a shard offers; false: over one of them
  uint32_t streams = 0;  ///< TCP connections on each rail; 0: one, and more on a link of 40 Gb/s and above. At most 64
  transport::WaitPolicy wait = transport::kAdaptiveWait;  ///< how long wait() spins before it blocks

  // Waiting for others.
  Duration join_timeout = std::chrono::minutes(30);  ///< for all ps tasks to start
  Duration rejoin_timeout = Duration::zero();        ///< for a lost ps task to be started again; zero: no wait
  /// The current address of a ps task, called before each attempt to reach it. It may start on any host. The backups
  /// have the indexes behind those of `cluster.ps`. NOT_FOUND and UNAVAILABLE mean that the address is not known yet;
  /// the client tries again. Empty: the addresses in `cluster` and `backups`.
  std::function<absl::StatusOr<std::string>(uint32_t ps_index)> ps_address = {};
  /// Receives every 10 s the peers that this worker waits for. Empty: they are logged as warnings.
  std::function<void(const std::string&)> log;
  const std::atomic<bool>* stop = nullptr;  ///< becoming true ends joining and, after 2 s, waiting: CANCELLED
  /// Called in the owner thread when the fresh parameters of a part of the model have arrived, with the updates applied
  /// to them. They stay until the next gradient of this part is ready. May be empty.
  /// Units  elements of the flattened model.
  std::function<void(uint64_t first, uint64_t count, uint64_t version)> on_arrived;
  /// Called in the owner thread while a call of it blocks, about twice a second. True ends the call at once: CANCELLED.
  std::function<bool()> interrupted;

  // Memory.
  DeviceMemory device;  ///< the variables of a model that computes on a GPU
  /// The ways to try with each shard, in this order, before staging.
  std::vector<GpuTransfer> gpu_transfers = {GpuTransfer::ipc, GpuTransfer::dma_buf, GpuTransfer::peer_memory};
  bool require_device = false;  ///< staging is an error
  MemoryBinder place_memory;    ///< called for parameters, gradients and headers before their first use

  // Observation.
  size_t marks = 0;  ///< capacity of the flight recorder, in marks; 0: off

  /// Called in the owner thread with the recorder's marks, while this worker exchanges or waits. The call follows
  /// within a second of a request at a ps, or of an increase of `*dump_signals`. May be empty.
  std::function<void(const std::vector<Mark>&)> dump;
  const std::atomic<uint32_t>* dump_signals = nullptr;
};

/// Counters of one client since it joined; they continue when it joins again.
struct ClientStats {
  Histogram exchange;  ///< from the first push of an exchange to the last fresh parameter
  uint64_t exchange_count = 0;
  uint64_t staleness_sum = 0;  ///< over exchanges, of bucket 0
  uint64_t staleness_max = 0;
  /// Exchanges by staleness, from 0 on; the last cell counts all larger values.
  std::array<uint64_t, 34> staleness{};
  uint64_t global_step = 0;  ///< as Client::global_step()
  uint64_t wait_ns = 0;      ///< of all exchanges: until the gradients of other workers had arrived
  /// Exchanges with a gradient, or a bucket of it, that came too late for its step. It is lost if `drops_late`, else a
  /// later step has it.
  uint64_t dropped = 0;
  ps::ModeKind mode = ps::ModeKind::async;
  bool drops_late = false;  ///< late gradients are lost: in quorum by late=drop, or if the model has several fragments
  ps::PushFormat push_format = ps::PushFormat::fp32;
  ps::ReturnFormat return_format = ps::ReturnFormat::fp32;
  uint64_t bytes_pushed = 0;
  uint64_t bytes_returned = 0;
  uint64_t bytes_pushed_fp32 = 0;    ///< of the same exchanges, if gradients were fp32
  uint64_t bytes_returned_fp32 = 0;  ///< … if parameters were fp32
  std::string paths_in_use;          ///< "shm, tcp": names of path_bytes
  std::vector<std::string> paths;    ///< one line per shard: transport, address and the reason of the choice
  struct PathBytes {
    std::string path;
    uint64_t pushed = 0;
    uint64_t returned = 0;
    uint64_t pushed_fp32 = 0;  ///< as above
    uint64_t returned_fp32 = 0;
  };
  std::vector<PathBytes> path_bytes;
  struct RailBytes {
    std::string path;     ///< the transport of its lanes: "tcp"
    std::string address;  ///< that of the ps
    uint64_t pushed = 0;
    uint64_t returned = 0;
  };
  std::vector<RailBytes> rail_bytes;  ///< for each path with rails or streams
  transport::RegistrationBudget registered;
  uint64_t moves = 0;      ///< paths lost during the run and replaced by another
  uint64_t returns = 0;    ///< moves back to a better path
  uint64_t takeovers = 0;  ///< lost ps tasks that were replaced by their backups
  uint64_t rejoins = 0;    ///< joins after a lost ps task was started again
  uint64_t redone = 0;     ///< steps of this worker that were repeated after that
  uint64_t flushes = 0;    ///< of network devices' writes into GPU memory, where a device requires them
};

/// Marks of one task, in the time of ps task 0.
struct TaskTrace {
  std::string task;  ///< "worker/1"
  std::vector<Mark> marks;
  int64_t bound_ns = 0;  ///< the largest error of the comparison of the two clocks; 2^61 - 1 or more: unknown
};

/// The worker side of the exchange: a library for trainers of any kind.
///
///   auto client = Client::join(options, {{"W", {784, 10}}, {"b", {10}}});
///   fill (*client)->parameters(i) with initial values;  (*client)->start();
///   each step: read parameters(i), write gradients(i), exchange(), wait().
///   (*client)->leave();
///
/// Shapes   Every tensor is fp32, row by row. `tensor_index` counts the tensors of the schema from 0; an index beyond
///          the last one stops the process. Parameters and gradients lie in memory that is registered once: the spans
///          stay valid while the client exists.
/// Order    Between exchange() (or the first ready()) and the return of wait(), the trainer touches neither parameters
///          nor gradients that it has reported as complete.
/// Fragments  Named sets of tensors (ps::Tensor::fragment), by index in the order of their first tensors. Each one has
///          its own steps and can be exchanged alone, while others are under way. Calls without a fragment concern all.
/// Paths    A lost data connection is replaced while the control plane works. The next transport of the order is tried
///          first, the lost one last. Buckets in flight are repeated and count once. The better path is tested later
///          beside the one in use, and then used again.
/// Servers  A lost ps that has a backup is replaced by it: no update is lost or applied twice. Without a backup, the
///          client waits for the restart of the ps (rejoin_timeout). All ps tasks then begin from one checkpoint, or,
///          without one, from the chief's copy of the parameters; position() names the steps to repeat.
/// Members  Workers join and leave while others continue; a lost worker returns by another join. The chief is the
///          lowest worker that is live, or named in the cluster specification and not yet joined.
/// Errors   ready(), exchange() and progress() return nothing: an error surfaces in the next wait(). UNAVAILABLE: a ps
///          was lost (a retry may succeed). ABORTED: the ps has ended the run, or has removed this worker; the
///          text has the reason. FAILED_PRECONDITION: schema or options differ from other workers', or a call out of
///          order. DATA_LOSS: a checksum does not match. CANCELLED: `stop`. After an error only leave(), give_up() and
///          the destructor are useful.
/// Signals  The client installs no handler and needs none. Its own code never runs oneDNN. oneDNN before
///          3.11.2 keeps the stack pointer in a heap workspace, which the frame of a signal handler overwrites. This
///          concerns programs with signal handlers that compute with the models of worker/models. They need a later
///          oneDNN, DNNL_MAX_CPU_ISA=SSE41 in the environment, or blocked signals in the computing threads.
/// Threads  Owner thread, unless stated otherwise. The owner may change between two calls.
class GRADRAIL_EXPORT Client {
 public:
  /// Waits for all ps tasks, joins them and opens a data connection to each shard.
  /// Shapes  schema: at least one tensor; names are unique, dimensions positive.
  /// Errors  INVALID_ARGUMENT: the schema. DEADLINE_EXCEEDED: a ps did not start within join_timeout.
  ///         ALREADY_EXISTS: another process runs with this task index. FAILED_PRECONDITION: schema, options or
  ///         authentication do not fit the run. CANCELLED: `stop`.
  static absl::StatusOr<std::unique_ptr<Client>> join(ClientOptions options, ps::Schema schema);
  /// Leaves, unless leave() or give_up() was called or the run has failed.
  ~Client();

  /// The tensors of join(), with their names, shapes and places in the parameters.
  /// Threads  Any thread; the schema does not change.
  const ps::Schema& schema() const;
  /// The newest parameters that wait(), start() or pull() has fetched; initial values are written here before start().
  /// Shapes  [elements of the tensor], fp32.
  absl::Span<float> parameters(size_t tensor_index);
  /// The gradients that the next exchange() sends. At first they are zero. The client changes none of them: after
  /// start(), wait() and pull() they are as the trainer has written them.
  /// Shapes  [elements of the tensor], fp32.
  absl::Span<float> gradients(size_t tensor_index);

  /// The chief of an uninitialized cluster offers the contents of parameters() as initial values. All other workers
  /// wait for parameters and fetch them. All workers should fill in the same values: when the chief is lost before its
  /// offer is complete, the next chief offers its own. Called once, before the first exchange.
  /// Errors  FAILED_PRECONDITION: an exchange is under way.
  absl::Status start();

  /// Optional: the gradient of this tensor is complete, and its parameters are not read again before wait(). Buckets
  /// that are complete leave at once. The first call of a step begins the exchange; a second call for the same tensor
  /// in one step has no effect. Before start() it fails the run, which wait() reports.
  void ready(size_t tensor_index);
  /// Declares all gradients as complete and sends the buckets that have not left. A second call before wait() has no
  /// effect. Before start() it fails the run, which wait() reports.
  void exchange();
  /// The same for the gradients of one fragment.
  void exchange(uint32_t fragment);
  /// The same for a part of the model that is no tensor, with the learning rate and the weight of its gradient. Parts
  /// of one step are disjoint. For variables in host memory.
  /// Units  elements of the flattened model (memory()).
  void ready_part(uint64_t first, uint64_t count, float rate, float weight);
  /// Sends, receives and replaces lost paths until something has arrived, until wake() or the timeout. For an owner
  /// that takes the parameters of each part when they arrive (ClientOptions::on_arrived).
  /// Errors  as wait().
  absl::Status advance(Duration timeout);
  /// Whether an exchange of this fragment is under way and all parameters have arrived: wait() then returns at once.
  bool has_arrived(uint32_t fragment) const;
  /// Optional, while the trainer computes the rest: sends gradients that a device has packed or copied. Never blocks.
  void progress();
  /// Blocks until all fresh parameters have arrived. Without an exchange under way it returns at once.
  /// Errors  every error of the exchange and of the run; see Errors above. FAILED_PRECONDITION also for a call before
  ///         exchange() where ready() has reported some tensors only: exchange() and another wait() continue the step.
  absl::Status wait();
  /// The same for the parameters of one fragment. Exchanges of others stay under way.
  absl::Status wait(uint32_t fragment);
  /// A wait() in progress, or the next one, reads ClientOptions::stop and dump_signals now.
  /// Threads  Any thread.
  void wake();

  /// Whether gradients are read from, and parameters stored into, the memory of ClientOptions::device. Then ready()
  /// means that the device has finished the gradient, and parameters() shows the state of the last fetch().
  bool on_device() const;
  /// Human-readable: "dmabuf (ipc: …)", the path in use and the reasons against better ones; per shard if they differ.
  std::string gpu_text() const;
  /// Whether this worker's own device has failed: give_up() informs the other workers.
  bool device_failed() const;
  /// Copies the parameters from the device to parameters(); has no effect without a device.
  /// Errors  UNAVAILABLE: the device was lost.
  absl::Status fetch();

  /// Fetches the current parameters without pushing gradients.
  /// Errors  as wait(). FAILED_PRECONDITION: an exchange is under way.
  absl::Status pull();

  /// Sets the learning rate of the next steps, in the place of ClientOptions::optimizer.learning_rate. async, ssp: of
  /// this worker's gradients. Otherwise all workers set the same rate for a step: sync refuses a worker with another
  /// one, and in quorum the rate of the lowest worker counts.
  /// The call does not look at the run: position() stays, and a lost ps is an error of wait() only.
  /// Errors  INVALID_ARGUMENT: negative, NaN or infinite. FAILED_PRECONDITION: an exchange is under way.
  absl::Status set_learning_rate(float rate);

  /// Sets the weight of this worker's next gradients in the mean of a step, such as the number of its samples. At first
  /// it is 1. Equal weights give the bits of a mean without weights. It has no effect in async and ssp, where no
  /// mean is formed. Parameters in GPU memory take no weight. The call does not look at the run, as above.
  /// Errors  INVALID_ARGUMENT: not more than 0, NaN or infinite. FAILED_PRECONDITION: an exchange is under way.
  absl::Status set_weight(float weight);

  /// Whether the servers had parameters when this worker joined: start() then fetches them.
  bool is_initialised() const;

  /// Updates applied to the parameters that this worker holds (bucket 0).
  uint64_t global_step() const;
  /// Updates applied to the parameters of a fragment that this worker holds.
  uint64_t global_step(uint32_t fragment) const;
  /// Steps of this run that this worker has completed. async: its own steps. Otherwise the common steps of all workers:
  /// a worker continues at the position of the other workers after a late join or a dropped gradient. With several
  /// fragments: steps of the first one.
  uint64_t position() const;
  /// The same for a fragment, counted from where position() counts: -1 where it was a step behind at a restart.
  /// Workers take the fragment with the lowest position next, and the first of equal ones. Then they never wait for
  /// each other in different fragments.
  int64_t position(uint32_t fragment) const;
  /// Whether this worker is the chief now.
  /// Threads  Any thread.
  bool is_chief() const;

  /// Waits until every worker of the cluster specification has called it with this name, but not for workers that left
  /// or were lost. A name can be used again: the n-th call waits for the n-th calls of the other workers. A worker that
  /// was started again counts from 1: for it each phase of a run has another name, such as "epoch 5".
  /// Errors  as wait().
  absl::Status barrier(const std::string& name);
  /// Waits until every other live worker has called it or left: for the chief's last step. It waits up to
  /// `timeout_for_absent` for workers of the cluster specification that have not joined yet.
  /// Errors  as wait().
  absl::Status barrier_live(const std::string& name, Duration timeout_for_absent = Duration::zero());

  /// Declares that this worker pushes no further gradients: other workers no longer wait for them while this one waits,
  /// reads and saves.
  /// Errors  as wait(). FAILED_PRECONDITION: an exchange is under way.
  absl::Status finish_steps();

  /// Whether every ps task has a checkpoint folder.
  bool saves_checkpoints() const;
  /// Saves parameters, optimizer state and step at every ps task; returns the files. For the chief. It waits for a save
  /// of another worker, which was the chief before.
  /// Errors  as begin_checkpoint() and finish_checkpoint().
  absl::StatusOr<std::vector<std::string>> save_checkpoint();
  /// The same beside further steps: returns when every shard has copied its state (in sync mode all of one step).
  /// Errors  FAILED_PRECONDITION: one is being written, or a ps has no checkpoint folder.
  absl::Status begin_checkpoint();
  /// True from begin_checkpoint() until each ps task has written its files or has failed.
  bool checkpoint_under_way() const;
  /// Waits until the last begin_checkpoint() is written; returns its files once, and none when nothing was begun.
  /// Errors  name task, file and cause.
  absl::StatusOr<std::vector<std::string>> finish_checkpoint();

  /// Ends this worker's part of the run; the other workers continue. A second call has no effect.
  absl::Status leave();
  /// The same, but the last member stays: it can save what others have done since the last checkpoint, and then leaves.
  /// Returns whether it has left.
  absl::StatusOr<bool> leave_unless_last();
  /// Ends the run of this worker with a reason: the ps tasks count it as lost at once, without a timeout.
  absl::Status give_up(const std::string& why);

  /// The statistics of this worker up to now.
  ClientStats stats() const;
  /// The statistics as the owner published them last: when joining, every 250 ms while exchanges end, and when leaving.
  /// Threads  Any thread.
  ClientStats published_stats() const;
  /// The duration of the exchange under way so far; zero: there is none.
  /// Threads  Any thread.
  Duration under_way() const;
  /// The contents of the flight recorder, oldest first.
  std::vector<Mark> marks() const;
  /// Sends the marks to ps task 0, for the chief's gather_trace(), which returns those of all tasks. Not during an
  /// exchange.
  absl::Status upload_trace();
  absl::StatusOr<std::vector<TaskTrace>> gather_trace();

  /// The memory of parameters and gradients, for reports of its placement.
  std::vector<MemorySpan> memory() const;

 private:
  class GRADRAIL_HIDDEN Impl;
  GRADRAIL_HIDDEN explicit Client(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace gradrail::worker
