#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "gradrail/clock.h"
#include "ps/replication/backup_layout.h"
#include "ps/replication/backup_progress.h"
#include "ps/store/parameter_store.h"
#include "transport/context.h"
#include "transport/registration.h"

namespace gradrail::ps {

/// The primary's connection to its backup: sends each bucket that has changed. One transfer of a bucket is under way at
/// a time; the next one carries updates that were applied meanwhile.
///
/// Invariant  A slot that was put is not written before the backup has acknowledged it. BackupProgress has the others.
/// Threads  Owner thread of the shard.
class BackupSender {
 public:
  using Phase = BackupProgress::Phase;
  /// Reads the state of a bucket's exchanges.
  using ExportBucket = std::function<void(uint32_t bucket, BucketState& state)>;

  struct Options {
    std::string address;
    std::string key;  ///< proves to the backup that this is its primary
    uint32_t shard_index = 0;
    BackupLayout layout;
    ExportBucket export_bucket;
    TimePoint deadline;  ///< time limit of the connection
  };

  /// Connects. The context, the store and the budget must outlive the sender.
  static absl::StatusOr<std::unique_ptr<BackupSender>> open(transport::Context& context, ParameterStore& store,
                                                            RegistrationBudget& budget, Options options);
  ~BackupSender();

  /// Counts a change of the bucket, which the backup does not have yet.
  void record_change(uint32_t bucket) { progress_.record_change(bucket); }
  const BackupProgress& progress() const { return progress_; }

  /// Posts pending transfers. True while one of them waits for room in the transport: call again soon.
  bool advance();

  // Events of the transport.
  void on_message(absl::Span<const std::byte> bytes);
  /// Returns the bucket that the backup has acknowledged; nothing when the notice was wrong.
  std::optional<uint32_t> on_acknowledged(uint64_t immediate);
  void on_lost(std::string_view cause) { fail(cause); }

  Phase phase() const { return progress_.phase(); }
  const std::string& why() const { return why_; }
  const transport::Connection* connection() const { return connection_; }
  std::string describe() const { return connection_->describe(); }

 private:
  BackupSender(transport::Context& context, ParameterStore& store, Options options)
      : context_(context), store_(store), options_(std::move(options)), progress_(options_.layout.bucket_count()) {}
  void start_handshake(const std::string& challenge);
  void accept_welcome(const std::string& slots_key);
  absl::Status fill_slot(uint32_t bucket);
  bool put_slot(uint32_t bucket);
  void fail(std::string_view why);

  transport::Context& context_;
  ParameterStore& store_;
  const Options options_;
  transport::RegisteredMemory slots_;    ///< source of the transfers
  transport::RegisteredMemory notices_;  ///< target of the backup's acknowledgements
  transport::Connection* connection_ = nullptr;
  transport::RemoteRegion remote_{};
  std::string unsent_;  ///< message that waits for room; "": none
  BackupProgress progress_;
  std::string why_;
  BucketState state_;  ///< scratch: keeps its memory from one bucket to the next
};

}  // namespace gradrail::ps
