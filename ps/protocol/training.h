#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "ps/protocol/mode.h"
#include "ps/protocol/optimizer_settings.h"
#include "ps/protocol/shard_map.h"

namespace gradrail::ps {

namespace proto {
class BeganFrom;
class JoinRequest;
class Training;
}  // namespace proto

/// Incremented when control.proto or exchange_layout.h change their meaning. Both ends must have the same.
constexpr uint32_t kProtocolVersion = 16;

/// Errors  FAILED_PRECONDITION names both versions.
absl::Status check_protocol_version(uint32_t theirs);

/// The options that all workers of a run share: the first worker to join decides, the others are compared with it.
struct Training {
  Mode mode;
  OptimizerConfig optimizer;
  PushFormat push = PushFormat::fp32;
  ReturnFormat returns = ReturnFormat::fp32;
  uint32_t bucket_bytes = 1 << 20;
  std::string agreement;  ///< not async: further options that must be equal (epochs, batch size), as text for people
};

/// The optimizer of the shards: the mode and the number of workers replace a momentum_every of 0.
OptimizerConfig optimizer_of_run(const Training& training);

proto::Training to_proto(const Training& training);
absl::StatusOr<Training> from_proto(const proto::Training& message);

/// Adds a ps process to JoinRequest.group, which identifies all of them in their order; without a process it is 0.
inline uint64_t with_process(uint64_t group, uint64_t process) {
  return (group ^ process) * 0x9e3779b97f4a7c15;  // odd, so that no information is lost: 2^64 / golden ratio
}

/// The first difference, for people: "learning_rate 0.01 here, 0.001 there". "" if equal.
std::string difference(const Training& ours, const Training& theirs, const Sides& sides = {});

/// The checkpoint set that a ps task began from. All tasks of a run begin from the same one.
struct BeganFrom {
  std::optional<uint64_t> global_step;  ///< none: from nothing
  uint64_t saved_us = 0;
};
proto::BeganFrom to_proto(const BeganFrom& began_from);
BeganFrom from_proto(const proto::BeganFrom& message);

void to_proto(const Schema& schema, proto::JoinRequest& request);
Schema schema_from_proto(const proto::JoinRequest& request);

}  // namespace gradrail::ps
