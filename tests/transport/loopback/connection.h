#pragma once

#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "base/check.h"
#include "tests/transport/loopback/context.h"
#include "tests/transport/loopback/link.h"
#include "transport/common/imported_regions.h"
#include "transport/completion.h"
#include "transport/connection.h"

namespace gradrail::transport::loopback {

constexpr size_t kMaxMessageBytes = 4096;

/// The completions of one poll, and the messages they point into.
class Report {
 public:
  Report(absl::Span<Completion> out, std::vector<std::vector<std::byte>>& messages) : out_(out), messages_(&messages) {}
  bool full() const { return count_ == out_.size(); }
  size_t count() const { return count_; }
  void add(Completion completion) {
    GRADRAIL_CHECK(!full());  // its caller leaves the event in the queue until there is room
    out_[count_++] = std::move(completion);
  }
  void add_message(Connection* connection, std::vector<std::byte> message);

 private:
  absl::Span<Completion> out_;
  size_t count_ = 0;
  std::vector<std::vector<std::byte>>* messages_;
};

/// An end of a Link.
class LoopbackConnection final : public Connection {
 public:
  /// shared_ptr: two contexts on two threads hold the link and either may leave first.
  LoopbackConnection(std::shared_ptr<Link> link, int end);

  absl::StatusOr<RemoteRegion> import(std::string_view key) override;
  absl::Status put(LocalSlice source, RemoteSlice target, PutOptions options) override;
  absl::Status get(LocalSlice target, RemoteSlice source, uint64_t tag) override;
  absl::Status send(absl::Span<const std::byte> message) override;
  absl::StatusOr<std::byte*> map(RemoteRegion region) override;
  std::string describe() const override;

  /// Carries out what the peer has posted and collects what it has done for us, as long as there is room.
  void progress(Report& report);
  bool has_work() const;
  /// Notifies the peer, which touches none of our memory afterwards.
  void leave();

 private:
  const End& us() const { return link_->ends[end_]; }
  const End& peer() const { return link_->ends[1 - end_]; }
  Direction& ours() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(link_->mutex) { return link_->directions[end_]; }
  Direction& theirs() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(link_->mutex) { return link_->directions[1 - end_]; }

  absl::Status post(Lane lane, Operation operation);
  bool is_here(TimePoint arrives) const;
  bool sees_loss() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(link_->mutex);

  void report_done(Report& report) ABSL_EXCLUSIVE_LOCKS_REQUIRED(link_->mutex);
  void report_loss(Report& report) ABSL_EXCLUSIVE_LOCKS_REQUIRED(link_->mutex);
  bool run_lane(Lane lane, Report& report) ABSL_EXCLUSIVE_LOCKS_REQUIRED(link_->mutex);
  absl::Status carry_out(Lane lane, Operation& operation, Report& report) ABSL_EXCLUSIVE_LOCKS_REQUIRED(link_->mutex);
  absl::Status move_bytes(Lane lane, const Operation& operation) ABSL_EXCLUSIVE_LOCKS_REQUIRED(link_->mutex);
  absl::Status refused(const absl::Status& why) const;

  const std::shared_ptr<Link> link_;
  const int end_;
  common::ImportedRegions<std::string> imported_;  ///< keys
  bool loss_reported_ = false;
  bool left_ = false;
};

}  // namespace gradrail::transport::loopback
