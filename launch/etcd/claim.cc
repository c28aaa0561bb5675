#include "launch/etcd/claim.h"

#include <thread>
#include <utility>

#include "base/random_bits.h"
#include "base/status.h"
#include "fmt/format.h"

namespace gradrail::launch {
namespace {

// One read each 200 ms is a negligible load for etcd, and no user notices the delay.
constexpr auto kBetweenLooks = std::chrono::milliseconds(200);
constexpr auto kFirstNotice = std::chrono::seconds(1);  // an etcd that is up has answered by then
// As often as the other waits of the program.
constexpr auto kNoticeEvery = std::chrono::seconds(10);
/// A task that holds a place for longer was not killed a moment ago.
constexpr auto kPredecessorEnds = std::chrono::seconds(3 * kLeaseSeconds);

/// One task's way to a place; each look at etcd leads to it, to an error, or to a reason to wait.
class Claimant {
 public:
  Claimant(Etcd& etcd, const MembershipRequest& request)
      // The id shows after a lost answer whether a key is this task's own.
      : etcd_(etcd), request_(request), id_(fmt::format("{:016x}", random_bits())) {}

  absl::StatusOr<Claim> claim();

 private:
  /// Nothing: not yet, and `waiting_for_` says why.
  absl::StatusOr<std::optional<Claim>> look();
  absl::StatusOr<std::optional<uint32_t>> choose(const Roster& roster, const Sizes& sizes);
  absl::StatusOr<std::optional<uint32_t>> choose_any(const Roster& roster, uint32_t limit);
  absl::StatusOr<std::optional<uint32_t>> wait_for_predecessor(const std::string& place, const std::string& taken);
  absl::StatusOr<std::optional<Claim>> take(const ps::TaskId& task, const Sizes& sizes, int64_t revision);
  bool patient_until(TimePoint deadline);

  Etcd& etcd_;
  const MembershipRequest& request_;
  const std::string id_;
  int64_t lease_ = 0;  ///< 0: none
  TimePoint lease_asked_;
  std::optional<Claim> tried_;  ///< of which we do not know whether it came through
  std::optional<TimePoint> taken_since_;
  std::string waiting_for_;
  Duration pause_ = kBetweenLooks;  ///< before the next look
  TimePoint notice_at_ = Clock::now() + kFirstNotice;
};

absl::StatusOr<std::optional<uint32_t>> Claimant::wait_for_predecessor(const std::string& place,
                                                                       const std::string& taken) {
  // From the first look, not from the start: etcd may have been unreachable before.
  if (!taken_since_) taken_since_ = Clock::now();
  if (Clock::now() - *taken_since_ > kPredecessorEnds)
    return absl::AlreadyExistsError(
        fmt::format("{} of job '{}' ({}): was a task started twice? Another run needs another name behind the address",
                    taken, request_.where.job, request_.where.text));
  waiting_for_ = fmt::format("{}: {} (a killed task's place is free {} s later)", place, taken, kLeaseSeconds);
  return std::nullopt;
}

absl::StatusOr<std::optional<uint32_t>> Claimant::choose_any(const Roster& roster, uint32_t limit) {
  const std::optional<uint32_t> free = roster.first_free(request_.job, limit);
  if (free) return free;
  return wait_for_predecessor(fmt::format("a free place of a {}", request_.job),
                              fmt::format("there are {} {} tasks already", limit, request_.job));
}

absl::StatusOr<std::optional<uint32_t>> Claimant::choose(const Roster& roster, const Sizes& sizes) {
  // Workers may join beyond the size of the run; the shards of a ps are fixed at its begin.
  const uint32_t limit = request_.job == "ps" ? sizes.ps : ps::kMaxWorkers;
  if (!request_.index) return choose_any(roster, limit);
  if (*request_.index >= limit)
    return absl::InvalidArgumentError(fmt::format("--task_index {}: job '{}' has {} tasks 0 to {}", *request_.index,
                                                  request_.where.job, request_.job, limit - 1));
  const Roster::Member* const there = roster.find({request_.job, *request_.index});
  if (there == nullptr) return request_.index;
  const std::string place = fmt::format("{}/{}", request_.job, *request_.index);
  return wait_for_predecessor(fmt::format("the place of {}", place),
                              fmt::format("{} is running already, at {}", place,
                                          there->record ? there->record->address : "an address that cannot be read"));
}

absl::StatusOr<std::optional<Claim>> Claimant::take(const ps::TaskId& task, const Sizes& sizes, int64_t revision) {
  // A lease that is half over could end before the keeper renews it the first time.
  if (lease_ == 0 || Clock::now() - lease_asked_ > std::chrono::seconds(kLeaseSeconds) / 2) {
    // Before the call: etcd starts the time of the lease while the answer is on its way.
    lease_asked_ = Clock::now();
    GRADRAIL_ASSIGN_OR_RETURN(lease_, etcd_.grant(kLeaseSeconds));
  }
  // After a first call only: local_host() uses the connection of the last answer.
  const std::string host = request_.host.empty() ? etcd_.local_host() : request_.host;
  tried_ = Claim{.task = task, .record = {.address = host, .id = id_, .sizes = sizes}, .lease = lease_};
  GRADRAIL_ASSIGN_OR_RETURN(
      const Etcd::Put put, etcd_.put_if_unchanged({.key = prefix_of(request_.where.job), .below = true}, revision,
                                                  {key_of(request_.where.job, task), to_text(tried_->record), lease_}));
  if (put == Etcd::Put::done) return tried_;
  // The change may be this task's own record: after a late answer another endpoint received the same request.
  if (put == Etcd::Put::no_lease) lease_ = 0;
  waiting_for_ = "other tasks that join at the same time";
  pause_ = std::chrono::milliseconds(random_bits() % 20);  // next time not all at the same moment
  return std::nullopt;
}

absl::StatusOr<std::optional<Claim>> Claimant::look() {
  GRADRAIL_ASSIGN_OR_RETURN(const Etcd::Listing listing,
                            etcd_.list({.key = prefix_of(request_.where.job), .below = true}));
  const Roster roster(request_.where.job, listing);
  if (tried_) {
    const Roster::Member* const there = roster.find(tried_->task);
    // The transaction came through although its answer was lost.
    if (there != nullptr && there->record && there->record->id == id_) return tried_;
  }
  GRADRAIL_ASSIGN_OR_RETURN(const std::optional<Sizes> sizes, agreed_sizes(roster, request_.sizes));
  if (!sizes.has_value()) {
    waiting_for_ = fmt::format("a task of job '{}' that gives the size of the run: give one of them --ps and --workers",
                               request_.where.job);
    return std::nullopt;
  }
  GRADRAIL_ASSIGN_OR_RETURN(const std::optional<uint32_t> index, choose(roster, *sizes));
  if (!index.has_value()) return std::nullopt;
  // `revision` ties the claim to this listing: a task that came in between makes it fail.
  return take({request_.job, *index}, *sizes, listing.revision);
}

/// False when the deadline has passed.
bool Claimant::patient_until(TimePoint deadline) {
  if (Clock::now() >= deadline) return false;
  if (Clock::now() >= notice_at_) {
    notice_at_ = Clock::now() + kNoticeEvery;
    request_.say(fmt::format("waiting for {}", waiting_for_));
  }
  std::this_thread::sleep_for(std::min(std::exchange(pause_, kBetweenLooks), deadline - Clock::now()));
  return true;
}

absl::StatusOr<Claim> Claimant::claim() {
  const TimePoint deadline = Clock::now() + request_.timeout;
  do {
    absl::StatusOr<std::optional<Claim>> found = look();
    if (found.ok() && found->has_value()) return **std::move(found);
    // Only an absent etcd can come back; each other error is final.
    if (!found.ok() && !absl::IsUnavailable(found.status())) return found.status();
    if (!found.ok())
      waiting_for_ = fmt::format("{} (is it started, and is the address in --rendezvous {} right?)",
                                 message_of(found.status()), request_.where.text);
  } while (patient_until(deadline));
  return absl::DeadlineExceededError(
      fmt::format("waited {} s (--join-timeout) for {}", request_.timeout / std::chrono::seconds(1), waiting_for_));
}

}  // namespace

absl::StatusOr<Claim> claim_place(Etcd& etcd, const MembershipRequest& request) {
  return Claimant(etcd, request).claim();
}

}  // namespace gradrail::launch
