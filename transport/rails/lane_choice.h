#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

namespace gradrail::transport::rails {

/// The choice of a lane for each group of puts: the lane that would finish the group first. A lane takes at most
/// kWindowBytes, or one group. Later groups wait until a lane has room, so that a slow lane takes less by itself. Pure.
class LaneChoice {
 public:
  /// Two buckets of the default size: the second is ready when the transport has taken the first.
  static constexpr uint64_t kWindowBytes = uint64_t{2} << 20;

  /// `speed`: of any unit, more than 0.
  void add(double speed) { lanes_.push_back({speed, 0}); }
  size_t count() const { return lanes_.size(); }

  /// The lane for a group of these bytes, or none while each one that is worth it is full. `waiting_bytes` is the total
  /// of the groups that wait, with this one.
  std::optional<size_t> choose(uint64_t bytes, uint64_t waiting_bytes) const;
  /// The lane with the least to do, also if it is full.
  size_t least_loaded(uint64_t bytes) const;
  void begin(size_t lane, uint64_t bytes) { lanes_[lane].under_way += bytes; }
  void end(size_t lane, uint64_t bytes);
  uint64_t under_way(size_t lane) const { return lanes_[lane].under_way; }

 private:
  struct Lane {
    double speed = 1;
    uint64_t under_way = 0;
  };
  static double time(const Lane& lane, uint64_t bytes) {
    return static_cast<double>(lane.under_way + bytes) / lane.speed;
  }

  std::vector<Lane> lanes_;
};

}  // namespace gradrail::transport::rails
