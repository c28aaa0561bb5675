#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "ps/parameter_store.h"
#include "ps/protocol.h"
#include "ps/replica_layout.h"
#include "transport/context.h"
#include "transport/registration.h"

namespace gradrail::ps {

/// A standby shard's end of the connection that its primary keeps it level over (ps/replica_layout.h).
/// Threads  Owner thread of the shard.
class ReplicaReceiver {
 public:
  /// Errors  INVALID_ARGUMENT: the key is none. Else as registering memory.
  static absl::StatusOr<std::unique_ptr<ReplicaReceiver>> open(transport::Context& context,
                                                               transport::Connection& connection,
                                                               const std::string& notices_key, ReplicaLayout layout,
                                                               transport::RegistrationBudget& budget,
                                                               const MemoryPlacer& place);

  std::string key() const { return slots_.region->key(); }
  /// Copies the bucket that has arrived, whole. Errors  what is wrong with it; those of the store.
  absl::Status take(uint64_t immediate, ShardProtocol& protocol, ParameterStore& store);
  /// False: no room, try again.
  bool answer(uint32_t bucket);

 private:
  ReplicaReceiver(transport::Connection& connection, ReplicaLayout layout)
      : connection_(connection), layout_(std::move(layout)) {}

  transport::Connection& connection_;
  const ReplicaLayout layout_;
  transport::RegisteredMemory slots_;
  transport::RemoteRegion notices_{};
};

}  // namespace gradrail::ps
