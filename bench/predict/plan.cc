#include "bench/predict/plan.h"

#include <algorithm>
#include <numeric>

#include "base/status.h"
#include "ps/protocol/exchange_layout.h"
#include "ps/protocol/push_format.h"
#include "ps/protocol/return_format.h"

namespace gradrail::bench::predict {
namespace {

/// Each bucket is two frames, of the payload and of the header (transport/tcp).
constexpr double kFrameHeaderBytes = 2 * 48;
/// Places for gradients of a worker at a shard: the default of training.
constexpr uint64_t kSlotBytes = 32 << 20;

/// Sets when the last element of each bucket becomes ready, as shares of the backward pass.
void set_ready(const std::vector<ExchangeLoad::Layer>& layers, const ps::ShardMap& map, Plan& plan) {
  if (layers.empty() || layers.back().ready_us <= 0) return;
  std::vector<uint64_t> ends;
  for (const ExchangeLoad::Layer& layer : layers) ends.push_back((ends.empty() ? 0 : ends.back()) + layer.elements);
  for (Plan::Bucket& bucket : plan.buckets) {
    const ps::ElementRange range = map.bucket(bucket.shard, bucket.index);
    const auto last = std::lower_bound(ends.begin(), ends.end(), range.first + range.count);
    const size_t layer = std::min<size_t>(static_cast<size_t>(last - ends.begin()), layers.size() - 1);
    bucket.ready = layers[layer].ready_us / layers.back().ready_us;
  }
}

}  // namespace

double Plan::bytes_into_shard(const Cluster& cluster) const {
  std::vector<double> bytes(first_bucket.size() - 1);
  for (const Bucket& bucket : buckets) bytes[bucket.shard] += cluster.workers * bucket.push_bytes;
  return *std::max_element(bytes.begin(), bytes.end());
}

absl::StatusOr<Plan> plan_of(const Description& description) {
  const Load& load = description.load;
  const uint32_t shard_count = description.cluster.shard_count();
  GRADRAIL_ASSIGN_OR_RETURN(const ps::ShardMap map,
                            ps::ShardMap::cut(load.bytes / sizeof(float), shard_count, load.bucket_bytes, load.push));
  Plan plan;
  for (uint32_t shard = 0; shard < shard_count; ++shard) {
    const auto first = static_cast<uint32_t>(plan.buckets.size());
    plan.first_bucket.push_back(first);
    const ps::SlotPlaces places(map, shard, kSlotBytes);
    for (uint32_t i = 0; i < map.bucket_count(shard); ++i) {
      const uint64_t count = map.bucket(shard, i).count;
      const auto returned = load.returns == ReturnFormat::fp32 ? count * sizeof(float) : ps::whole_return_bytes(count);
      const auto common = [&](std::optional<uint32_t> neighbor) { return neighbor ? first + *neighbor : Plan::kNone; };
      plan.buckets.push_back(
          {.shard = shard,
           .index = i,
           .fp32_bytes = static_cast<double>(count * sizeof(float)),
           .push_bytes =
               static_cast<double>(ps::packed_bytes(count, load.push) + sizeof(ps::SlotHeader)) + kFrameHeaderBytes,
           .return_bytes = static_cast<double>(returned + sizeof(ps::ReturnHeader)) + kFrameHeaderBytes,
           .before = common(places.before(i)),
           .after = common(places.after(i))});
    }
  }
  plan.first_bucket.push_back(static_cast<uint32_t>(plan.buckets.size()));
  set_ready(load.layers, map, plan);
  // The order of worker::Exchange: shard by shard, the last bucket first.
  plan.order.resize(plan.buckets.size());
  std::iota(plan.order.begin(), plan.order.end(), 0);
  std::sort(plan.order.begin(), plan.order.end(), [&](uint32_t a, uint32_t b) {
    const Plan::Bucket& left = plan.buckets[a];
    const Plan::Bucket& right = plan.buckets[b];
    if (left.ready != right.ready) return left.ready < right.ready;
    return left.shard != right.shard ? left.shard < right.shard : left.index > right.index;
  });
  return plan;
}

}  // namespace gradrail::bench::predict
