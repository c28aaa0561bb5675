#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "gradrail/clock.h"
#include "transport/connection.h"
#include "transport/rail_bytes.h"
#include "transport/rails/greeting.h"
#include "transport/rails/lane_choice.h"

namespace gradrail::transport::rails {

class BundleConnection;
class BundleContext;

/// A connection of the child context. Its user_data points to it.
struct Lane {
  Connection* connection = nullptr;
  std::string host;                    ///< the host of its rail, for people
  uint32_t number = 0;                 ///< index in its bundle
  RailBytes* bytes = nullptr;          ///< counters of its rail; null: no greeting named its lanes
  BundleConnection* bundle = nullptr;  ///< null: accepted, and not all lanes of its bundle have arrived

  // These members are used while it is accepted and `bundle` is null.
  TimePoint deadline;
  std::optional<Greeting> greeting;  ///< absent: not received yet
  bool dropped = false;              ///< is closed at the end of the poll

  // Used in bundles with several lanes.
  struct Group {  ///< a put with a put_done requested from the lane
    uint64_t number = 0;
    uint64_t bytes = 0;  ///< bytes that its end subtracts from under_way
    uint64_t tag = 0;    ///< tag of the owner; 0: none requested
  };
  std::deque<Group> groups;
  uint64_t last_number = 0;
};

/// A connection that consists of lanes. With one lane each call is that lane's.
/// Invariants  1. The puts of one group leave on one lane in their order. `open_lane_` is the lane of a group without
///                its notice, and `waiting_` holds whole groups or the rest of one behind others that wait.
///             2. Each group that a lane has taken is in the lane's `groups` until its put_done.
///             3. A region has the same name on each lane: tcp counts imports, and each lane imports each region.
class BundleConnection final : public Connection {
 public:
  /// `left_out`: the rails that could not be reached, with reasons. `is_welcome`: posts are possible immediately.
  BundleConnection(BundleContext& context, std::vector<std::unique_ptr<Lane>> lanes,
                   const std::vector<uint32_t>& mbit_per_s, size_t rails_left_out, std::string left_out,
                   bool is_welcome);

  // Connection.
  absl::StatusOr<RemoteRegion> import(std::string_view key) override;
  absl::Status put(LocalSlice source, RemoteSlice target, PutOptions options) override;
  absl::Status get(LocalSlice target, RemoteSlice source, uint64_t tag) override;
  absl::Status send(absl::Span<const std::byte> message) override;
  absl::StatusOr<std::byte*> map(RemoteRegion region) override { return lanes_[0]->connection->map(region); }
  uint32_t lanes() const override { return static_cast<uint32_t>(lanes_.size()); }
  std::string left_out() const override { return left_out_; }
  std::string describe() const override;
  std::string path() const override { return path_; }
  void count_received(uint32_t lane, uint64_t bytes) override;

  // The context uses these functions.
  const std::vector<std::unique_ptr<Lane>>& all_lanes() const { return lanes_; }
  bool is_single() const { return lanes_.size() == 1; }
  bool has_waiting() const { return !waiting_.empty() || !unsent_.empty(); }
  /// Sends messages that wait, and posts groups that wait to lanes with room.
  void post_waiting();
  /// Tag of the owner behind a lane's put_done; 0: the owner requested none.
  uint64_t put_done(Lane& lane, uint64_t number);
  void set_lost() { lost_ = true; }
  bool lost() const { return lost_; }
  bool is_welcome() const { return is_welcome_; }
  void set_welcome() { is_welcome_ = true; }

 private:
  struct Put {
    LocalSlice source;
    RemoteSlice target;
    PutOptions options;
  };

  bool send_unsent();
  absl::Status check(const LocalSlice& source, const RemoteSlice& target) const;
  absl::Status post(size_t lane, const Put& put);
  uint64_t first_group_bytes() const;

  BundleContext& context_;
  const std::vector<std::unique_ptr<Lane>> lanes_;
  const std::string left_out_;
  std::string path_;

  LaneChoice choice_;
  RemoteRegion last_import_{};
  std::optional<size_t> open_lane_;  ///< invariant 1
  uint64_t open_bytes_ = 0;          ///< bytes of the group on open_lane_ until now
  std::deque<Put> waiting_;
  std::deque<std::string> unsent_;  ///< messages that wait for the welcome
  uint64_t waiting_bytes_ = 0;
  bool is_welcome_;
  bool lost_ = false;
};

}  // namespace gradrail::transport::rails
