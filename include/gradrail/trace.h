#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace gradrail {

/// One event of a bucket within an exchange.
struct Mark {
  enum class Kind : uint8_t {
    begun,     ///< worker: the exchange as a whole
    pushed,    ///< worker: the trainer has handed the gradient over
    copied,    ///< worker: the GPU has packed it, or it has come from there to the host, where it is staged
    posted,    ///< worker: the transport has taken its header
    answered,  ///< worker: the notice of fresh parameters was seen
    done,      ///< worker: all fresh parameters are where the trainer reads them; the exchange as a whole
    noticed,   ///< shard: the notice of its header came out of the transport
    taken,     ///< shard: its turn has come
    applying,  ///< shard: every expected gradient has arrived
    applied,   ///< shard
  };
  int64_t at_ns = 0;  ///< of Clock: the same for all processes of a host, since it started
  uint64_t step = 0;  ///< the worker's own
  uint32_t worker = 0;
  uint32_t shard = 0;
  uint32_t bucket = 0;  ///< of the shard
  Kind kind{};
};

/// Marks of one task, in the time of ps task 0.
struct TaskTrace {
  std::string task;  ///< "worker/1"
  std::vector<Mark> marks;
  int64_t bound_ns = 0;  ///< the largest error of the comparison of the two clocks; 2^61 - 1 or more: unknown
};

}  // namespace gradrail
