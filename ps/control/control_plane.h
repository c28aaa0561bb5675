#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "ps/control/backup_handler.h"
#include "ps/control/barrier_handler.h"
#include "ps/control/checkpoint_handler.h"
#include "ps/control/control_context.h"
#include "ps/control/heartbeat_handler.h"
#include "ps/control/join_handler.h"
#include "ps/control/replication.h"
#include "ps/control/run_setup.h"
#include "ps/control/stats_handler.h"

namespace gradrail::ps {

/// The control plane of one ps task: shared state, and a handler for each kind of call. The handlers use messages, but
/// no gRPC, which control_service.cc adds. The gate in front authenticates the callers (ps/admission).
///
///     control_service ─▶ join  barrier  heartbeat  checkpoint  stats  backup      one handler per kind of call
///                         │      │        │           │         │      │
///                         ▼      ▼        ▼           ▼         ▼      ▼
///                       setup (agreement of the run)   replication (role, link to the replication peer)
///                         │                              │
///                         ▼                              ▼
///                       context: options, shards, state (membership, reports), losses
///
/// Locks    RunSetup::mutex, then ControlState::mutex; those of LossQueue, StatsHandler and ReplicationLink are leaves.
/// Threads  Any thread, except as the members note. Shards report to `context.losses` and `replication` only.
struct ControlPlane {
  /// `folder`: identity of options.checkpoint_dir. `shards` is complete before replication.start() and the first call.
  ControlPlane(ServerOptions options, std::string folder, std::vector<std::unique_ptr<Shard>>& shards)
      : context(std::move(options), std::move(folder), shards) {}

  ControlContext context;
  RunSetup setup{context};
  Replication replication{context};
  BackupHandler backup{context, setup, replication};
  CheckpointHandler checkpoint{context, setup};
  StatsHandler stats{context, checkpoint, replication};
  BarrierHandler barrier{context, replication};
  HeartbeatHandler heartbeat{context, replication, backup, stats};
  JoinHandler join{context, setup, replication, backup, heartbeat, stats};
};

}  // namespace gradrail::ps
