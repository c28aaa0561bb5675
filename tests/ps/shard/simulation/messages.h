#pragma once

#include <cstdint>

#include "ps/shard/shard_protocol.h"

namespace gradrail::ps::simulation {

/// Worker to shard: a payload put into the slot, and the notice of its header.
struct Notification {
  Arrival arrival;
  uint64_t payload = 0;
  uint64_t connection = 0;
  bool writes_slot = true;  ///< puts are ordered: a copy that overtakes nothing but comes late cannot rewrite memory
};

/// Shard to worker: parameters and return header.
struct Answer {
  WorkerIndex worker = 0;
  uint64_t incarnation = 0;
  uint32_t shard = 0;
  uint32_t bucket = 0;
  uint64_t step = 0;
  uint64_t version = 0;
  uint64_t parameters = 0;
  uint64_t connection = 0;
  bool dropped = false;
  uint64_t next_step = 0;
};

}  // namespace gradrail::ps::simulation
