#pragma once

#include <cstdint>
#include <vector>

#include "ps/protocol/mode.h"

namespace gradrail::ps {

/// The state of one bucket's exchanges that a backup needs to continue in place of its primary: which pushes are done.
/// Pushes that wait are not part of it; workers repeat what is unanswered. ShardProtocol exports and imports it.
struct BucketState {
  struct Done {
    WorkerIndex worker = 0;
    uint64_t incarnation = 0;
    uint64_t step = 0;
    uint64_t staleness = 0;
    bool dropped = false;
    bool fresh = true;
    bool operator==(const Done&) const = default;
  };
  /// Updates applied; a backup that takes over counts on from here.
  uint64_t version = 0;
  /// ssp: step that all expected workers have pushed.
  uint64_t floor = 0;
  bool initialised = false;
  std::vector<Done> done;  ///< the last incarnation of each worker that was ever a member; ascending
};

}  // namespace gradrail::ps
