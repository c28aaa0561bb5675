#pragma once

#include <cstdint>
#include <string>

namespace gradrail::ps::prove {

/// One transition of the world.
struct Event {
  enum class Kind : uint8_t {
    // The network and the workers. They happen sooner or later: progress must not need more than these.
    deliver_push,
    deliver_answer,
    end_window,     ///< of the next step of a bucket
    shard_closes,   ///< the shard detects that the worker's end is closed
    worker_closes,  ///< the worker detects that the shard's end is closed
    reconnect,
    rejoin,  ///< of a running worker that is no member
    join,    ///< of a new incarnation
    start,
    finish,
    leave,
    notice_loss,  ///< the heartbeat of a worker has ended
    // Replication.
    advance,
    deliver_bucket,
    deliver_acknowledgement,
    deliver_level,
    mirror,           ///< the members travel to the backup over the control plane
    primary_notices,  ///< the primary detects that its backup is lost
    backup_notices,   ///< the backup detects that its primary is lost
    expect_primary,
    welcome,
    detach,
    take_over,
    stop_replaced,  ///< the former primary receives the higher term of its backup
    // Faults, limited by Faults. A copy that was made may arrive or not.
    deliver_copy,
    copy,
    worker_end_fails,
    shard_end_fails,
    forge,
    join_too_late,  ///< of an incarnation that was replaced
    restart,
    kill,
    remove,
    lose_primary,
    lose_backup,
    lose_link,
    fill_without_room,
    end_old_window,  ///< the timer of a step that is applied
  };
  static constexpr Kind kFirstFault = Kind::deliver_copy;

  Kind kind{};
  uint8_t worker = 0;
  uint8_t server = 0;
  uint8_t side = 0;  ///< 0: primary, 1: backup
  uint8_t bucket = 0;
  uint8_t index = 0;  ///< of a copy

  bool is_fault() const { return kind >= kFirstFault; }
};

std::string describe(const Event& event);

}  // namespace gradrail::ps::prove
