#pragma once

#include <functional>
#include <string>

#include "absl/status/statusor.h"
#include "gradrail/clock.h"
#include "launch/rendezvous/rank_stream.h"

namespace gradrail::launch {

/// Joins the first rank at `address`, "host:port", and repeats until it listens. A refusal is an error of the first
/// receive(). `secret` of the job; "": none.
/// Errors  DEADLINE_EXCEEDED: the cause of the last attempt. INVALID_ARGUMENT: `address` is none.
absl::StatusOr<RankStreamPtr> join_first_rank(const std::string& address, const std::string& secret,
                                              proto::RankHello hello, TimePoint deadline,
                                              const std::function<void(const std::string&)>& say);

}  // namespace gradrail::launch
