// The request of a worker to join, the largest message of the control plane.
#include <google/protobuf/stubs/logging.h>

#include "base/check.h"
#include "base/status.h"
#include "gradrail/cluster.h"
#include "ps/protocol/control.pb.h"
#include "ps/protocol/schema.h"
#include "ps/protocol/shard_map.h"
#include "ps/protocol/training.h"
#include "tests/fuzz/fuzz.h"

namespace gradrail::ps {
namespace {

constexpr uint32_t kMaxShards = 4096;  // the control plane refuses more before it cuts

void try_training(const proto::Training& message) {
  const absl::StatusOr<Training> training = from_proto(message);
  if (!training.ok()) return fuzz::check_refusal(training.status(), absl::StatusCode::kInvalidArgument, "");
  GRADRAIL_CHECK(validate(training->optimizer).ok());
  GRADRAIL_CHECK(!training->mode.waits() || training->mode.worker_count <= kMaxWorkers);
  GRADRAIL_CHECK(check_bound(training->mode).ok());
  const absl::StatusOr<Training> again = from_proto(to_proto(*training));
  GRADRAIL_CHECK(again.ok() && difference(*training, *again).empty());
}

void try_schema(const proto::JoinRequest& request) {
  const Schema schema = schema_from_proto(request);
  const absl::Status valid = validate(schema);
  if (!valid.ok()) return fuzz::check_refusal(valid, absl::StatusCode::kInvalidArgument, "");
  proto::JoinRequest again;
  to_proto(schema, again);
  GRADRAIL_CHECK(schema_from_proto(again) == schema && difference(schema, schema).empty());
  uint64_t elements = 0;
  for (const Tensor& tensor : schema) {
    GRADRAIL_CHECK(!tensor.name.empty() && tensor.elements() > 0);
    elements += tensor.elements();
  }
  const uint32_t shards = request.total_shards() % kMaxShards;
  const absl::StatusOr<ShardMap> map = ShardMap::cut(elements, shards, request.training().bucket_bytes());
  if (!map.ok()) return fuzz::check_refusal(map.status(), absl::StatusCode::kInvalidArgument, "");
  GRADRAIL_CHECK(map->shard_count() == shards && map->elements() == elements);
  uint64_t covered = 0;
  for (uint32_t i = 0; i < shards; ++i) {
    const ElementRange range = map->shard(i);
    GRADRAIL_CHECK(range.first == covered || range.count == 0);
    covered += range.count;
    if (map->bucket_count(i) == 0) continue;
    const ElementRange last = map->bucket(i, map->bucket_count(i) - 1);
    GRADRAIL_CHECK(last.count > 0 && last.first + last.count == range.first + range.count);
  }
  GRADRAIL_CHECK(covered == elements);
}

}  // namespace
}  // namespace gradrail::ps

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t bytes) {
  using namespace gradrail;
  using namespace gradrail::ps;
  static const google::protobuf::LogSilencer kSilence;
  proto::JoinRequest request;
  if (!request.ParseFromArray(data, static_cast<int>(bytes))) return 0;
  try_training(request.training());
  try_schema(request);
  const BeganFrom began_from = from_proto(request.begin_from());
  GRADRAIL_CHECK(from_proto(to_proto(began_from)).global_step == began_from.global_step);
  return 0;
}
