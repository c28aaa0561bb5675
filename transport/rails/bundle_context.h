#pragma once

#include <deque>
#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "base/rate_limited_log.h"
#include "transport/common/completion_queue.h"
#include "transport/context.h"
#include "transport/rails/bundle_connection.h"
#include "transport/rails/greeting.h"

namespace gradrail::transport::rails {

/// The part of a shard's address of rails that a worker connects to; "": one lane is enough. `several`: more rails than
/// the first. `streams` as in BundleContext.
std::string address_of_lanes(const std::string& rails, bool several, uint32_t streams);

/// Limits that tests change.
struct Limits {
  Duration join = std::chrono::seconds(10);  ///< time limit for the greetings of all lanes of a bundle
  size_t joining = 256;                      ///< lanes without their bundle; beyond, the oldest is closed
};

/// Connections of several lanes over a context of tcp, the child. A rail is an address of the peer.
///
/// An address of rails is a list: "lanes:10.0.0.1:4000,10.1.0.1:4001". An accepted bundle is reported when the
/// greeting of each lane has arrived. Other addresses are those of the child. A connection there has one lane and no
/// greeting.
/// Invariants  1. user_data of each connection of the child is its Lane. A lane is in `joining_` or `dropped_`, or it
///                belongs to a bundle.
///             2. The completions of a lane leave in their order. While `ready_` contains some, later ones are
///                appended.
class BundleContext final : public Context {
 public:
  /// `streams`: connections on each rail that this side opens; 0: by the speed of the link.
  explicit BundleContext(std::unique_ptr<Context> child, uint32_t streams = 1, const Limits& limits = {});
  ~BundleContext() override;

  // Context.
  std::string_view name() const override { return child_->name(); }
  Capabilities capabilities() const override { return child_->capabilities(); }
  absl::StatusOr<std::unique_ptr<MemoryRegion>> register_memory(MemorySpan memory, Access access) override {
    return child_->register_memory(memory, access);
  }
  absl::StatusOr<std::string> listen(const std::string& address) override;
  /// A rail that cannot be reached is left out while another one works.
  absl::StatusOr<Connection*> connect(const std::string& address, TimePoint deadline) override;
  void close(Connection* connection) override;
  size_t poll(absl::Span<Completion> out) override;
  int wait_fd() const override { return child_->wait_fd(); }
  bool arm() override;
  RailTraffic rail_traffic() const override { return rail_traffic_; }

  // Connections use these functions.
  void visit_later(BundleConnection* connection) { waiting_.push_back(connection); }
  void lose(BundleConnection* connection, const absl::Status& cause);

 private:
  struct OpenRail {
    std::vector<std::unique_ptr<Lane>> lanes;
    uint32_t mbit_per_s = 0;  ///< speed of each lane
  };
  absl::StatusOr<Connection*> connect_plain(const std::string& address, TimePoint deadline);
  absl::StatusOr<OpenRail> open_rail(const std::string& address, uint32_t most_streams, TimePoint deadline);
  absl::Status greet(const std::vector<std::unique_ptr<Lane>>& lanes, const std::vector<uint32_t>& mbit_per_s);
  BundleConnection* add_single(Connection* connection, const std::string& host);
  void count_rails(const std::vector<std::unique_ptr<Lane>>& lanes);
  BundleConnection* add(std::unique_ptr<BundleConnection> connection);
  void close_lane(Lane& lane);

  // Completions.
  size_t poll_child(absl::Span<Completion> out);
  bool translate(Completion& completion);
  void hold_back(const Completion& completion);
  void accept(Connection* connection, uint64_t listener);
  void on_joining(Lane& lane, const Completion& completion);
  void join(Lane& lane, absl::Span<const std::byte> message);
  void drop_joining(Lane& lane, std::string_view why);
  std::unique_ptr<Lane> take_joining(const Lane& lane);
  void close_dropped();
  void expire();
  void report(Completion completion, std::string body = "");

  // Set once.
  const std::unique_ptr<Context> child_;
  const uint32_t streams_;
  const Limits limits_;

  // Owner thread.
  struct Place {
    std::string host;
    bool is_plain = false;  ///< its connections send no greeting
  };
  std::vector<Place> places_;  ///< indexed by listen() of the child
  RailTraffic rail_traffic_;   ///< lanes point to its entries, which never move
  std::vector<std::unique_ptr<BundleConnection>> connections_;
  std::deque<std::unique_ptr<Lane>> joining_;  ///< oldest first
  /// Completions of the current poll may still point to these.
  std::vector<std::unique_ptr<Lane>> dropped_;
  std::vector<BundleConnection*> waiting_;  ///< connections with groups that wait for a lane
  std::set<std::string> failed_rails_;      ///< rails that the last connect() did not reach: last in the next one
  common::CompletionQueue<std::unique_ptr<std::string>> ready_;
  RateLimitedLog rate_limited_log_;
};

}  // namespace gradrail::transport::rails
