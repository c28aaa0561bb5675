#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "gradrail/client_handles.h"
#include "gradrail/client_options.h"
#include "gradrail/export.h"
#include "gradrail/memory_span.h"
#include "gradrail/schema.h"

namespace gradrail {

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
/// Fragments  Named sets of tensors (Tensor::fragment), by index in the order of their first tensors. Each one has
///          its own steps and can be exchanged alone, while others are under way. Calls without a fragment concern all.
/// Paths    A lost data connection is replaced while the control plane works. The next transport of the order is tried
///          first, the lost one last. Buckets in flight are repeated and count once. The better path is tested later
///          beside the one in use, and then used again.
/// Servers  A lost ps that has a backup is replaced by it: no update is lost or applied twice. Without a backup, the
///          client waits for the restart of the ps (RecoveryOptions::rejoin_timeout). All ps tasks then begin from one
///          checkpoint, or, without one, from the chief's copy of the parameters; position() names the steps to repeat.
/// Members  Workers join and leave while others continue; a lost worker returns by another join. The chief is the
///          lowest worker that is live, or named in the cluster specification and not yet joined.
/// Errors   ready() and exchange() return nothing: an error surfaces in the next wait(). UNAVAILABLE: a ps
///          was lost (a retry may succeed). ABORTED: the ps has ended the run, or has removed this worker; the
///          text has the reason. FAILED_PRECONDITION: schema or options differ from other workers', or a call out of
///          order. DATA_LOSS: a checksum does not match. CANCELLED: ClientHooks::stop. After an error only leave(), give_up() and
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
  /// Errors  INVALID_ARGUMENT: the schema. DEADLINE_EXCEEDED: a ps did not start within RecoveryOptions::join_timeout.
  ///         ALREADY_EXISTS: another process runs with this task index. FAILED_PRECONDITION: schema, options or
  ///         authentication do not fit the run. CANCELLED: ClientHooks::stop.
  static absl::StatusOr<std::unique_ptr<Client>> join(ClientOptions options, Schema schema);
  /// Leaves, unless leave() or give_up() was called or the run has failed.
  ~Client();

  /// The tensors of join(), with their names, shapes and places in the parameters.
  /// Threads  Any thread; the schema does not change.
  const Schema& schema() const;
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
  /// Blocks until all fresh parameters have arrived. Without an exchange under way it returns at once.
  /// Errors  every error of the exchange and of the run; see Errors above. FAILED_PRECONDITION also for a call before
  ///         exchange() where ready() has reported some tensors only: exchange() and another wait() continue the step.
  absl::Status wait();
  /// The same for the parameters of one fragment. Exchanges of others stay under way.
  absl::Status wait(uint32_t fragment);
  /// A wait() in progress, or the next one, reads ClientHooks::stop and dump_signals now.
  /// Threads  Any thread.
  void wake();

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

  /// Declares that this worker pushes no further gradients: other workers no longer wait for them while this one waits,
  /// reads and saves.
  /// Errors  as wait(). FAILED_PRECONDITION: an exchange is under way.
  absl::Status finish_steps();

  /// Ends this worker's part of the run; the other workers continue. A second call has no effect.
  absl::Status leave();
  /// The same, but the last member stays: it can save what others have done since the last checkpoint, and then leaves.
  /// Returns whether it has left.
  absl::StatusOr<bool> leave_unless_last();
  /// Ends the run of this worker with a reason: the ps tasks count it as lost at once, without a timeout.
  absl::Status give_up(const std::string& why);

  /// The memory of parameters and gradients, for reports of its placement.
  std::vector<MemorySpan> memory() const;

  // What fewer programs need. Each is valid while the client exists.
  Checkpoints checkpoints() { return Checkpoints(impl_.get()); }
  Barriers barriers() { return Barriers(impl_.get()); }
  Statistics statistics() const { return Statistics(impl_.get()); }
  Traces traces() { return Traces(impl_.get()); }
  ClientDevice device() { return ClientDevice(impl_.get()); }
  Parts parts() { return Parts(impl_.get()); }

 private:
  friend class worker::ClientImpl;
  GRADRAIL_HIDDEN explicit Client(std::unique_ptr<worker::ClientImpl> joined);

  std::unique_ptr<worker::ClientImpl> impl_;
};

}  // namespace gradrail
