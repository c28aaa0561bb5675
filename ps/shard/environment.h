#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/memory.h"
#include "ps/protocol/mode.h"
#include "ps/store/parameter_store.h"
#include "transport/context.h"
#include "transport/registration.h"
#include "transport/registry.h"
#include "transport/wait_set.h"

namespace gradrail::ps {

/// NaN or infinity in the parameters or the optimizer's state of a shard that had neither (NonFiniteWatch).
struct NonFinite {
  enum class Source : uint8_t {
    gradient,  ///< `worker` has pushed it
    initial,   ///< `worker` has offered it as initial value
    update,    ///< all gradients are finite: their sum or the update has overflowed
    state,     ///< value of an update in the state of the optimizer; the parameter is finite
    unknown,   ///< present before this step, in a checkpoint or at the former primary, or new with this step
  };
  Source source{};
  WorkerIndex worker = 0;
  uint32_t further = 0;  ///< other workers whose gradients of this step have it as well
  uint64_t element = 0;  ///< index in the model
  float value = 0.0f;
  uint64_t step = 0;     ///< async, ssp: of the worker
  uint64_t version = 0;  ///< version of the bucket with it
};

/// Options of one shard. The shard calls the functions in its own thread; none of them may block.
struct ShardOptions {
  std::string name;                     ///< name in the log: "ps/0 shard 1"
  std::vector<std::string> transports;  ///< transports to listen on
  std::string bind_host;                ///< host for transports with network addresses
  std::vector<std::string> rails;       ///< addresses of the network interfaces; empty: bind_host alone
  uint16_t data_port = 0;  ///< port of the first transport over a network; each further one has the next; 0: any
  transport::OpenOptions open;
  WaitPolicy wait = kAdaptiveWait;
  /// The first call in the shard's thread: binds it to its cores. May be empty.
  std::function<void()> on_thread_start;
  MemoryBinder place_memory;  ///< parameters and slots
  /// A worker was refused, or its data connection was lost and it did not return in time.
  std::function<void(WorkerIndex, uint64_t incarnation, const std::string& cause)> on_lost;
  /// The parameters are lost (a GPU failed), or encrypted data was altered: the run cannot continue.
  std::function<void(const std::string& cause)> on_failed;
  /// The parameters of this shard were finite, and are not any more; they are finite again. May be empty.
  std::function<void(const NonFinite& first)> on_non_finite;
  std::function<void()> on_finite_again;
  /// The backup is level (`cause` is empty), or it was lost.
  std::function<void(const std::string& cause)> on_backup;
  StoreMaker make_store = make_host_store;
  uint64_t slot_bytes = 0;  ///< memory for the payloads of one worker that are under way (SlotPlaces); 0: no limit
  size_t marks = 0;         ///< capacity of the flight recorder
};

/// The address on which one transport of a shard listens, or the reason why it does not.
struct ShardEndpoint {
  std::string transport;
  std::string address;
  std::string refused;
  std::string rails = {};  ///< the addresses for a connection of several lanes; "": none
};

/// State that all parts of a shard share. It outlives them.
struct ShardEnvironment {
  // Set once, before the shard's thread starts.
  const ShardOptions options;
  std::vector<std::unique_ptr<transport::Context>> contexts;

  // Owner thread.
  RegistrationBudget registered;
};

}  // namespace gradrail::ps
