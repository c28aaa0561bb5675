#pragma once

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "ps/control.pb.h"
#include "ps/optimizer.h"
#include "ps/protocol.h"
#include "ps/shard_map.h"

namespace gradrail::ps {

/// Raised when control.proto or exchange_layout.h change meaning; both ends must have the same.
constexpr uint32_t kProtocolVersion = 5;

/// What all workers must agree on: the first to join decides, the others are compared with it.
struct Training {
  Mode mode;
  OptimizerConfig optimizer;
  uint32_t bucket_bytes = 1 << 20;
  std::string agreement;  ///< sync: whatever else must be the same (epochs, batch size), in words for people
};

/// As on the command line: async, sync, ssp:K, backup:B (worker_count is left as it is). INVALID_ARGUMENT lists them.
absl::StatusOr<Mode> parse_mode(std::string_view text);
std::string mode_text(const Mode& mode);

/// INVALID_ARGUMENT names the number that is none, or beyond what the optimizers' formulas allow.
absl::Status validate(const OptimizerConfig& optimizer);

proto::Training to_proto(const Training& training);
absl::StatusOr<Training> from_proto(const proto::Training& message);

/// JoinRequest.group of the ps processes described, one after the other; `group` of none is 0.
inline uint64_t with_process(uint64_t group, uint64_t process) {
  return (group ^ process) * 0x9e3779b97f4a7c15;  // odd, without a pattern
}

/// What differs, for people: "learning_rate 0.01 here, 0.001 there". "" when equal.
std::string difference(const Training& ours, const Training& theirs);

void to_proto(const Schema& schema, proto::JoinRequest& request);
Schema schema_from_proto(const proto::JoinRequest& request);

}  // namespace gradrail::ps
