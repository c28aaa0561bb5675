#include "transport/rails/lane_choice.h"

#include "base/check.h"

namespace gradrail::transport::rails {

size_t LaneChoice::least_loaded(uint64_t bytes) const {
  GRADRAIL_CHECK(!lanes_.empty());
  size_t best = 0;
  for (size_t i = 1; i < lanes_.size(); ++i) {
    if (time(lanes_[i], bytes) < time(lanes_[best], bytes)) best = i;
  }
  return best;
}

std::optional<size_t> LaneChoice::choose(uint64_t bytes, uint64_t waiting_bytes) const {
  const size_t first = least_loaded(bytes);
  std::optional<size_t> best;
  double total_speed = 0;
  auto total_bytes = static_cast<double>(waiting_bytes);
  for (size_t i = 0; i < lanes_.size(); ++i) {
    const Lane& lane = lanes_[i];
    total_speed += lane.speed;
    total_bytes += static_cast<double>(lane.under_way);
    const bool has_room = lane.under_way == 0 || lane.under_way + bytes <= kWindowBytes;
    if (has_room && (!best || time(lane, bytes) < time(lanes_[*best], bytes))) best = i;
  }
  if (!best || *best == first) return best;
  // A slow lane would hold the group for longer than all lanes need for everything: a faster one is worth the wait.
  return time(lanes_[*best], bytes) <= total_bytes / total_speed ? best : std::nullopt;
}

void LaneChoice::end(size_t lane, uint64_t bytes) {
  GRADRAIL_CHECK(lanes_[lane].under_way >= bytes);
  lanes_[lane].under_way -= bytes;
}

}  // namespace gradrail::transport::rails
