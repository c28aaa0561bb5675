#pragma once

#include <atomic>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "base/mutex.h"
#include "gradrail/client.h"
#include "ps/control/parent.h"
#include "ps/protocol/schema.h"
#include "ps/shard/task_queue.h"
#include "worker/tree/node_store.h"

namespace gradrail::tree {

/// Waits until the ps tasks of these options answer.
/// Errors  DEADLINE_EXCEEDED: not within RecoveryOptions::join_timeout. CANCELLED: ClientHooks::stop.
absl::Status wait_for_parent(const ClientOptions& options);

/// The parent of a node, over the client library. A dedicated thread owns the client, and exchanges the pushes of the
/// shards' stores with the parent:
///
///   workers ─ push ─▶ shard ─ NodeStore::update ─▶ push ─▶ thread: Parts::ready, advance ─▶ parent
///   workers ◀─ answer ─ shard ◀─ try_end ◀─ wake ◀─ on_arrived ◀──────────────────────────────────┘
///
/// All workers of the node in sync push a bucket before the node does, and all have its answer before the next step: a
/// bucket has one gradient under way at most.
/// Threads  Those of ps::Parent.
class TreeParent final : public ps::Parent {
 public:
  /// `options` has the cluster of the parent, the index of this node among the workers there, and all that concerns
  /// connections. join() sets the rest.
  static absl::StatusOr<std::shared_ptr<TreeParent>> start(ClientOptions options);
  ~TreeParent() override;

  absl::StatusOr<Joined> join(const Schema& schema, const ps::Training& training, const ps::ShardMap& map) override;
  ps::StoreMaker store_maker(uint32_t shard) override;
  absl::Status failure() const override;
  void leave(const std::string& failed) override;
  std::string name() const override;
  bool saves_checkpoints() const override;
  absl::Status begin_checkpoint() override;
  absl::StatusOr<bool> is_checkpoint_written() override;

 private:
  explicit TreeParent(ClientOptions options) : options_(std::move(options)) {}

  enum class Work { task, offer, exchange };
  void run();
  Work wait_for_work();
  void forget_client();
  void wake();
  void fail(const absl::Status& cause);
  absl::Status run_in_thread(Duration limit, std::function<absl::Status()> task);

  // The thread of the client.
  absl::Status join_in_thread(const Schema& schema, const ps::Training& training, const ps::ShardMap& map,
                              Joined& joined);
  Joined pulled() const;
  absl::Status offer();
  absl::Status exchange();
  void push_gradients();
  void on_arrived(uint64_t first, uint64_t count, uint64_t version);

  // Set once.
  const ClientOptions options_;

  // Any thread.
  ps::TaskQueue tasks_;
  std::atomic<bool> stop_ = false;  ///< ClientHooks::stop
  mutable Mutex mutex_;
  ConditionVariable changed_;
  Client* client_to_wake_ ABSL_GUARDED_BY(mutex_) = nullptr;
  std::vector<NodeStore*> stores_ ABSL_GUARDED_BY(mutex_);
  std::deque<NodeGradient> gradients_ ABSL_GUARDED_BY(mutex_);  ///< gradients that have not left
  uint64_t unoffered_ ABSL_GUARDED_BY(mutex_) = 0;  ///< elements whose initial values the shards do not have yet
  Upstream upstream_ ABSL_GUARDED_BY(mutex_);
  ps::ShardMap map_ ABSL_GUARDED_BY(mutex_);
  absl::Status failure_ ABSL_GUARDED_BY(mutex_);
  bool saves_checkpoints_ ABSL_GUARDED_BY(mutex_) = false;

  // The thread of the client.
  ps::Layout layout_;
  std::vector<uint64_t> versions_;  ///< lowest version of the last pull, by fragment
  std::vector<uint64_t> steps_;     ///< step under way, by fragment; 0: none
  std::unique_ptr<Client> client_;
  bool is_exchanging_ = false;  ///< the parent has parameters

  std::thread thread_;  ///< last
};

}  // namespace gradrail::tree
