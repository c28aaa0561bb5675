#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "gradrail/clock.h"
#include "gradrail/export.h"
#include "gradrail/statistics.h"
#include "gradrail/trace.h"

namespace gradrail {

class Client;
namespace worker {
class ClientImpl;
}

// The parts of a Client that fewer programs need. Each is valid while its client exists.
// Threads  That of Client::wait(), unless stated otherwise.

/// Checkpoints at the ps tasks.
class GRADRAIL_EXPORT Checkpoints {
 public:
  /// Whether every ps task has a checkpoint folder.
  bool is_enabled() const;
  /// Saves parameters, optimizer state and step at every ps task; returns the files. For the chief. It waits for a save
  /// of another worker, which was the chief before.
  /// Errors  as begin() and finish().
  absl::StatusOr<std::vector<std::string>> save();
  /// The same beside further steps: returns when every shard has copied its state (in sync mode all of one step).
  /// Errors  FAILED_PRECONDITION: one is being written, or a ps has no checkpoint folder.
  absl::Status begin();
  /// True from begin() until each ps task has written its files or has failed.
  bool is_under_way() const;
  /// Waits until the checkpoint of the last begin() is written; returns its files once, and none when nothing was begun.
  /// Errors  name task, file and cause.
  absl::StatusOr<std::vector<std::string>> finish();

 private:
  friend class Client;
  GRADRAIL_HIDDEN explicit Checkpoints(worker::ClientImpl* client) : client_(client) {}

  worker::ClientImpl* client_;
};

/// Waits of workers for each other.
class GRADRAIL_EXPORT Barriers {
 public:
  /// Waits until every worker of the cluster specification has called it with this name, but not for workers that left
  /// or were lost. A name can be used again: the n-th call waits for the n-th calls of the other workers. A worker that
  /// was started again counts from 1: for it each phase of a run has another name, such as "epoch 5".
  /// Errors  as Client::wait().
  absl::Status wait(const std::string& name);
  /// Waits until every other live worker has called it or left: for the chief's last step. It waits up to
  /// `timeout_for_absent` for workers of the cluster specification that have not joined yet.
  /// Errors  as Client::wait().
  absl::Status wait_for_live(const std::string& name, Duration timeout_for_absent = Duration::zero());

 private:
  friend class Client;
  GRADRAIL_HIDDEN explicit Barriers(worker::ClientImpl* client) : client_(client) {}

  worker::ClientImpl* client_;
};

/// Counters of a client.
class GRADRAIL_EXPORT Statistics {
 public:
  /// The counters up to now.
  ClientStats now() const;
  /// The counters as the owner published them last: when joining, every 250 ms while exchanges end, and when leaving.
  /// Threads  Any thread.
  ClientStats published() const;
  /// The duration of the exchange under way so far; zero: there is none.
  /// Threads  Any thread.
  Duration exchange_under_way() const;

 private:
  friend class Client;
  GRADRAIL_HIDDEN explicit Statistics(const worker::ClientImpl* client) : client_(client) {}

  const worker::ClientImpl* client_;
};

/// The flight recorder of a client (ClientHooks::marks).
class GRADRAIL_EXPORT Traces {
 public:
  /// The contents of the recorder, oldest first.
  std::vector<Mark> marks() const;
  /// Sends the marks to ps task 0, for gather() of the chief. Not during an exchange.
  absl::Status upload();
  /// The marks of all tasks.
  absl::StatusOr<std::vector<TaskTrace>> gather();

 private:
  friend class Client;
  GRADRAIL_HIDDEN explicit Traces(worker::ClientImpl* client) : client_(client) {}

  worker::ClientImpl* client_;
};

/// Variables in the memory of PlacementOptions::device.
class GRADRAIL_EXPORT ClientDevice {
 public:
  /// Whether gradients are read from, and parameters stored into, the memory of the device. Then Client::ready() means
  /// that the device has finished the gradient, and Client::parameters() shows the state of the last fetch().
  bool is_used() const;
  /// Human-readable: "dmabuf (ipc: …)", the path in use and the reasons against better ones; per shard if they differ.
  std::string text() const;
  /// Whether the device has failed: Client::give_up() informs the other workers.
  bool has_failed() const;
  /// Copies the parameters from the device to Client::parameters(); has no effect without a device.
  /// Errors  UNAVAILABLE: the device was lost.
  absl::Status fetch();
  /// Optional, while the trainer computes the rest: sends gradients that a device has packed or copied. Never blocks.
  void progress();

 private:
  friend class Client;
  GRADRAIL_HIDDEN explicit ClientDevice(worker::ClientImpl* client) : client_(client) {}

  worker::ClientImpl* client_;
};

/// Exchanges of parts of the model that are no tensors, for variables in host memory.
class GRADRAIL_EXPORT Parts {
 public:
  /// Client::ready() of a part, with the learning rate and the weight of its gradient. Parts of one step are disjoint.
  /// Units  elements of the flattened model (Client::memory()).
  void ready(uint64_t first, uint64_t count, float rate, float weight);
  /// Sends, receives and replaces lost paths until something has arrived, until Client::wake() or the timeout. For an
  /// owner that takes the parameters of each part when they arrive (ClientHooks::on_arrived).
  /// Errors  as Client::wait().
  absl::Status advance(Duration timeout);
  /// Whether an exchange of this fragment is under way and all parameters have arrived: Client::wait() then returns at
  /// once.
  bool have_arrived(uint32_t fragment) const;

 private:
  friend class Client;
  GRADRAIL_HIDDEN explicit Parts(worker::ClientImpl* client) : client_(client) {}

  worker::ClientImpl* client_;
};

}  // namespace gradrail
