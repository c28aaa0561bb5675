#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "base/clock.h"
#include "ps/control.pb.h"
#include "ps/shard_map.h"
#include "transport/negotiate.h"
#include "worker/shard_path.h"

namespace gradrail::worker {

/// A worker's end of one shard: which paths there are to it, the one in use, and what an exchange with it needs.
/// Threads  Owner thread of the client.
struct ShardLink {
  uint32_t ps_index = 0;
  uint32_t shard_index = 0;  ///< in the whole
  ps::ElementRange range;
  std::vector<transport::Candidate> candidates;  ///< in order of preference
  std::vector<ps::proto::JoinReply::Endpoint> endpoints;

  std::map<GpuWay, std::string> ways_refused;  ///< why the path in use does not take them
  bool host_slots = false;                     ///< the check of a path into the shard's GPU memory has failed
  std::string ipc_refused;                     ///< what no path to this shard changes

  std::unique_ptr<ShardPath> path;    ///< in use, or just lost; null while none is open
  size_t candidate = 0;               ///< of `path`
  std::unique_ptr<ShardPath> trial;   ///< a better path that is being tried beside it
  size_t trial_candidate = SIZE_MAX;  ///< the last that was tried
  GpuWay trial_way = GpuWay::staged;
  std::map<GpuWay, std::string> trial_refused;        ///< ways_refused, if it is taken
  std::set<std::pair<size_t, GpuWay>> failed_trials;  ///< candidates, and ways over them that their check refused
  TimePoint trial_deadline;
  TimePoint next_trial = TimePoint::max();  ///< max: `path` is the best there is
  struct Bytes {
    uint64_t pushed = 0;
    uint64_t returned = 0;
  };
  Bytes* bytes = nullptr;  ///< of the path in use

  struct Bucket {
    ps::ElementRange range;        ///< in the whole model
    uint32_t tensors = 0;          ///< that overlap it
    uint32_t tensors_missing = 0;  ///< of those, not ready in this step
    bool pushed = false;
    bool payload_posted = false;
    bool outstanding = false;
    uint64_t version = 0;
  };
  std::vector<Bucket> buckets;

  bool is_up() const { return path != nullptr && path->phase() == ShardPath::Phase::active; }
};

}  // namespace gradrail::worker
