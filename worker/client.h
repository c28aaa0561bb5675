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
#include "base/flight_recorder.h"
#include "base/histogram.h"
#include "base/memory.h"
#include "ps/cluster_spec.h"
#include "ps/optimizer.h"
#include "ps/protocol.h"
#include "ps/security.h"
#include "ps/shard_map.h"
#include "transport/registration.h"
#include "transport/wait_set.h"

namespace gradrail::gpu {
class Compute;
}

namespace gradrail::worker {

/// How gradients leave a GPU and parameters get there. Names are those of --gpu-direct.
enum class GpuWay : uint8_t {
  ipc,          ///< the shard's GPU reads and stores them in the worker's GPU memory
  dma_buf,      ///< a network device does, which was given a dma-buf
  peer_memory,  ///< … which a kernel module explains the memory to
  staged,       ///< copied through pinned host memory, bucket by bucket
};
const char* name_of(GpuWay way);

/// A worker's variables in one block of its GPU's memory, as ps/exchange_layout.h has it, in the order of the schema.
struct DeviceMemory {
  gpu::Compute* device = nullptr;  ///< null: variables are in host memory. Outlives the client; lent to its owner
  float* parameters = nullptr;
  float* gradients = nullptr;
  size_t bytes = 0;  ///< from the first parameter on; without the space for checks no network device reaches it
  std::string key;   ///< gpu::export_memory() of all of it; "": not for other processes
  std::string why_no_key;
};

struct ClientOptions {
  ps::ClusterSpec cluster;
  std::vector<std::string> standbys;        ///< "host:port" of each ps task's, in the same order; empty: there are none
  uint32_t task_index = 0;                  ///< worker 0 is the chief
  ps::ModeKind mode = ps::ModeKind::async;  ///< must be the same on all workers, as must optimizer and bucket_bytes
  uint32_t mode_bound = 0;                  ///< K of ssp:K, B of backup:B
  ps::OptimizerConfig optimizer;
  uint32_t bucket_bytes = 1 << 20;
  std::string agreement;  ///< not async: what else must be the same on all workers, in words for people
  std::vector<std::string> transports = {"shm", "ucx", "ofi", "tcp"};  ///< in order of preference
  bool rdma_only = true;                                               ///< ucx and ofi: not without an RDMA device
  std::string ofi_provider;                      ///< libfabric's name of the provider to use; "": the best
  bool fallback = true;                          ///< false: the first refusal of a transport is an error
  bool require_rdma = false;                     ///< a path that no RDMA device carries is refused
  Duration failback = std::chrono::seconds(30);  ///< after a move, how often better paths are tried; zero: never
  bool checksums = false;                        ///< CRC32C over every payload, both ways
  ps::Security security;
  std::string bind_host;  ///< this host's address for network connections; "": the kernel's choice
  transport::WaitPolicy wait;
  Duration join_timeout = std::chrono::minutes(30);  ///< for all ps tasks to come up
  /// How long a ps that was lost is waited for, to be started again; zero: not at all.
  Duration rejoin_timeout = Duration::zero();
  /// Where a ps task is now, asked before each try to reach it: it may come up, and come back, anywhere. NOT_FOUND
  /// and UNAVAILABLE say why that is not known, and are waited out. Empty: where the cluster says.
  std::function<absl::StatusOr<std::string>(uint32_t ps_index)> ps_address = {};
  std::function<void(const std::string&)> notice;  ///< told every 10 s for whom this worker waits
  DeviceMemory device;                             ///< where variables are at home
  /// What to try with each shard, in this order, before staging.
  std::vector<GpuWay> gpu_ways = {GpuWay::ipc, GpuWay::dma_buf, GpuWay::peer_memory};
  bool require_device = false;  ///< staging is an error
  size_t marks = 0;             ///< room of the flight recorder
  /// Given what it has, in the owner thread, within a second of somebody asking a ps for it or of `*dump_signals`
  /// growing, while this worker exchanges or waits. May be empty.
  std::function<void(const std::vector<Mark>&)> dump;
  const std::atomic<uint32_t>* dump_signals = nullptr;
  MemoryPlacer place_memory;                ///< parameters, gradients, headers; in the owner thread
  const std::atomic<bool>* stop = nullptr;  ///< becoming true ends joining and, after a moment, waiting: CANCELLED
};

struct ClientStats {
  Histogram exchange;  ///< from the first push of an exchange to the last fresh parameter
  uint64_t exchange_count = 0;
  uint64_t staleness_sum = 0;  ///< over exchanges, of bucket 0
  uint64_t staleness_max = 0;
  /// Exchanges by staleness, from 0 on; the last cell has all that are beyond.
  std::array<uint64_t, 34> staleness{};
  uint64_t global_step = 0;  ///< as Client::global_step()
  uint64_t wait_ns = 0;      ///< of all exchanges: until the gradients of others were there
  uint64_t dropped = 0;      ///< exchanges whose gradient, or a bucket of it, came too late to be summed
  uint64_t bytes_pushed = 0;
  uint64_t bytes_returned = 0;
  std::string paths_in_use;        ///< their names, as in path_bytes
  std::vector<std::string> paths;  ///< one line per shard: transport, address and why
  struct PathBytes {
    std::string path;
    uint64_t pushed = 0;
    uint64_t returned = 0;
  };
  std::vector<PathBytes> path_bytes;
  transport::RegistrationBudget registered;
  uint64_t moves = 0;      ///< paths lost in mid-run and replaced by another
  uint64_t returns = 0;    ///< moves back to a better path
  uint64_t takeovers = 0;  ///< a ps was lost, and its standby went on
  uint64_t rejoins = 0;    ///< a ps was lost, and came back
  uint64_t redone = 0;     ///< steps of this worker that were done once more after that
  uint64_t flushes = 0;    ///< of what network devices wrote into GPU memory, where a device asks for it
};

/// Marks of one task, in the time of ps task 0.
struct TaskTrace {
  std::string task;  ///< "worker/1"
  std::vector<Mark> marks;
  int64_t bound_ns = 0;  ///< of what comparing the clocks may be wrong by
};

/// A worker's end of the exchange: the drop-in library for trainers of any kind.
///
///   auto client = Client::join(options, {{"W", {784, 10}}, {"b", {10}}});
///   fill (*client)->parameters(i) with initial values;  (*client)->start();
///   each step: read parameters(i), write gradients(i), exchange(), wait().
///   (*client)->leave();
///
/// Parameters and gradients live in memory registered once; the spans stay valid while the client lives. Between
/// exchange() and wait() neither may be touched.
/// Paths    A data connection that dies while the control plane lives is replaced: by the next transport of the order
///          that works, or the same again; what was under way is repeated and counts once. Later the better path is
///          tried again, beside the one in use.
/// Servers  A ps that was lost and has a standby is replaced by it, and nothing is lost or done twice. One that has
/// none
///          and is started again is waited for (rejoin_timeout): all ps tasks then begin from one
///          checkpoint, or, when there is none, from the chief's copy of the parameters; wait() leads back to the steps
///          that are to be done once more, which position() tells.
/// Members  Workers come and go while others go on; a worker that was lost comes back by joining anew. The chief is the
///          lowest worker that is live, or of the cluster specification and still to come.
/// Errors   UNAVAILABLE: a ps was lost (the run may be tried again). ABORTED: the ps gave the run up and says why, or
/// took
///          this worker for lost. FAILED_PRECONDITION: schema or options differ from the other workers'.
///          CANCELLED: `stop`. After an error only leave(), give_up() and the destructor are useful.
/// Threads  Owner thread.
class Client {
 public:
  static absl::StatusOr<std::unique_ptr<Client>> join(ClientOptions options, ps::Schema schema);
  ~Client();

  const ps::Schema& schema() const;
  /// Shapes  [elements of the tensor], fp32.
  absl::Span<float> parameters(size_t tensor_index);
  absl::Span<float> gradients(size_t tensor_index);

  /// Chief of an uninitialised cluster: offers what parameters() holds as initial values. All others: waits until there
  /// are parameters and fetches them; should the chief be lost before that, the next one offers its own, so that all
  /// workers do well to fill in the same. Call once, before the first exchange.
  absl::Status start();

  /// Optional: this gradient is complete, its parameters are not read again before wait(); complete buckets go out.
  void ready(size_t tensor_index);
  /// Pushes whatever has not gone out yet.
  void exchange();
  /// Optional, while the rest is computed: sends on what has come out of a device. Never blocks.
  void progress();
  /// Until all fresh parameters are here.
  absl::Status wait();

  /// Whether gradients are taken from, and parameters stored into, the memory of ClientOptions::device. Then ready()
  /// means that the device has finished the gradient, and parameters() shows what fetch() brought.
  bool on_device() const;
  /// For people: "dmabuf (ipc: …)", how they travel now and why not otherwise; shard by shard where these differ.
  std::string gpu_text() const;
  /// Whether it was this worker's own device that failed: give_up() tells the others.
  bool device_failed() const;
  /// Copies the parameters from the device to parameters(); nothing to do without one.
  absl::Status fetch();

  /// Fetches the current parameters without pushing.
  absl::Status pull();

  /// Updates applied to the parameters this worker holds (bucket 0).
  uint64_t global_step() const;
  /// Steps of this run that lie behind this worker. async: its own. Else those that all make together: one that joins
  /// late begins with others, and a gradient that was dropped for being late leads to where the others are.
  uint64_t position() const;
  /// Whether this worker is the chief now. Any thread.
  bool is_chief() const;

  /// Waits until every worker of the cluster specification has called it; who left or was lost is not waited for.
  absl::Status barrier(const std::string& name);
  /// Waits until every other live worker has called it or left: for the chief's last words. Those of the cluster
  /// specification that have not joined yet are waited for as long as `patience_for_absent`.
  absl::Status barrier_of_the_living(const std::string& name, Duration patience_for_absent = Duration::zero());

  /// Says that this worker's steps are done: nobody waits for its gradients while it waits, reads and saves.
  absl::Status make_no_more_steps();

  /// Whether every ps task was given a checkpoint folder.
  bool saves_checkpoints() const;
  /// Saves parameters, optimizer state and step at every ps task; returns the files. For the chief.
  absl::StatusOr<std::vector<std::string>> save_checkpoint();
  /// The same beside further steps: returns when every shard has copied what it holds (in sync mode all of one step).
  /// FAILED_PRECONDITION while one is being written.
  absl::Status begin_checkpoint();
  bool checkpoint_under_way() const;
  /// Waits until what was begun last is written; returns its files, none when nothing was begun.
  absl::StatusOr<std::vector<std::string>> finish_checkpoint();

  /// Says goodbye; the others go on. Also done by the destructor when nothing went wrong before.
  absl::Status leave();
  /// Says why this worker cannot go on: it is lost, and nobody has to miss it first.
  absl::Status give_up(const std::string& why);

  ClientStats stats() const;
  /// The same as the owner published it last: when joining, every 250 ms while exchanges end, and when leaving.
  /// Threads  Any thread.
  ClientStats published_stats() const;
  /// How long the exchange under way has been; zero: there is none. Threads  Any thread.
  Duration under_way() const;
  /// What the flight recorder has.
  std::vector<Mark> marks() const;
  /// Gives them to ps task 0, for the chief's gather_trace(): the marks of all tasks. Not during an exchange.
  absl::Status hand_in_trace();
  absl::StatusOr<std::vector<TaskTrace>> gather_trace();

  /// Where parameters and gradients lie, for summaries.
  std::vector<MemorySpan> memory() const;

 private:
  class Impl;
  explicit Client(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace gradrail::worker
