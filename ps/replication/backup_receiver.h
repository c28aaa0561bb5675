#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "ps/replication/backup_layout.h"
#include "ps/store/parameter_store.h"
#include "transport/context.h"
#include "transport/registration.h"

namespace gradrail::ps {

/// The backup's end of the connection over which its primary keeps it level (backup_layout.h).
/// Threads  Owner thread of the shard.
class BackupReceiver {
 public:
  /// Opens the receiver. `notices_key` is that of the region of the primary for the answers.
  /// Errors  INVALID_ARGUMENT: not a region key. Those of the registration of memory.
  static absl::StatusOr<std::unique_ptr<BackupReceiver>> open(transport::Context& context,
                                                              transport::Connection& connection,
                                                              const std::string& notices_key, BackupLayout layout,
                                                              RegistrationBudget& budget, const MemoryBinder& place);

  /// Key of the memory into which the primary puts its buckets.
  std::string key() const { return slots_.region->key(); }
  /// Copies the bucket that has arrived into the store. Returns the state of its exchanges.
  /// Errors  INVALID_ARGUMENT, DATA_LOSS: the slot is wrong. Otherwise those of the store.
  absl::StatusOr<BucketState> receive(uint64_t immediate, ParameterStore& store);
  /// Notifies the primary that this bucket was copied. False: the transport has no room, try again.
  bool acknowledge(uint32_t bucket);

 private:
  BackupReceiver(transport::Connection& connection, BackupLayout layout)
      : connection_(connection), layout_(std::move(layout)) {}

  transport::Connection& connection_;
  const BackupLayout layout_;
  /// Written by the primary alone, with the layout of `layout_`.
  transport::RegisteredMemory slots_;
  transport::RemoteRegion notices_{};
};

}  // namespace gradrail::ps
