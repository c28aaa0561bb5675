#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "gradrail/histogram.h"
#include "gradrail/mode.h"
#include "gradrail/registration_budget.h"

namespace gradrail {

/// Counters of one client since it joined; they continue when it joins again.
struct ClientStats {
  Histogram exchange;  ///< times from the first push of an exchange to the last fresh parameter
  uint64_t exchange_count = 0;
  uint64_t staleness_sum = 0;  ///< sum over the exchanges, of bucket 0
  uint64_t staleness_max = 0;
  /// Exchanges by staleness, from 0 on; the last cell counts all larger values.
  std::array<uint64_t, 34> staleness{};
  uint64_t global_step = 0;  ///< the result of Client::global_step()
  uint64_t wait_ns = 0;      ///< waits of all exchanges until the gradients of other workers had arrived
  /// Exchanges with a gradient, or a bucket of it, that came too late for its step. It is lost if `drops_late`, else a
  /// later step has it.
  uint64_t dropped = 0;
  ModeKind mode = ModeKind::async;
  bool drops_late = false;  ///< late gradients are lost: in quorum by late=drop, or if the model has several fragments
  PushFormat push_format = PushFormat::fp32;
  ReturnFormat return_format = ReturnFormat::fp32;
  uint64_t bytes_pushed = 0;
  uint64_t bytes_returned = 0;
  uint64_t bytes_pushed_fp32 = 0;    ///< bytes of the same exchanges, if gradients were fp32
  uint64_t bytes_returned_fp32 = 0;  ///< … if parameters were fp32
  std::string paths_in_use;          ///< "shm, tcp": names of path_bytes
  std::vector<std::string> paths;    ///< one line per shard: transport, address and the reason of the choice
  struct PathBytes {
    std::string path;
    uint64_t pushed = 0;
    uint64_t returned = 0;
    uint64_t pushed_fp32 = 0;  ///< bytes of the same exchanges, if gradients were fp32
    uint64_t returned_fp32 = 0;
  };
  std::vector<PathBytes> path_bytes;
  struct RailBytes {
    std::string path;     ///< the transport of its lanes: "tcp"
    std::string address;  ///< address of the ps
    uint64_t pushed = 0;
    uint64_t returned = 0;
  };
  std::vector<RailBytes> rail_bytes;  ///< one entry for each rail of a path with rails or streams
  RegistrationBudget registered;
  uint64_t moves = 0;      ///< paths lost during the run and replaced by another
  uint64_t returns = 0;    ///< moves back to a better path
  uint64_t takeovers = 0;  ///< lost ps tasks that were replaced by their backups
  uint64_t rejoins = 0;    ///< joins after a lost ps task was started again
  uint64_t redone = 0;     ///< steps of this worker that were repeated after that
  uint64_t flushes = 0;    ///< flushes of the writes of network devices into GPU memory, where a device requires them
};

}  // namespace gradrail
