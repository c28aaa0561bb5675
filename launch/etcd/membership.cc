#include "launch/etcd/membership.h"

#include "base/status.h"
#include "fmt/format.h"
#include "launch/etcd/claim.h"

namespace gradrail::launch {
namespace {

/// A task that tries to reach a ps asks before each try.
constexpr auto kLookupInterval = std::chrono::milliseconds(200);

absl::StatusOr<std::string> address_in(const Roster& roster, const RendezvousUrl& where, uint32_t index) {
  const Roster::Member* const there = roster.find({"ps", index});
  const std::string address = there != nullptr && there->record ? there->record->address : "";
  const absl::StatusOr<ps::HostPort> parsed = ps::parse_host_port(address);
  // parse_host_port() adds a default port, so that only a text with a port stays equal.
  if (parsed.ok() && ps::to_string(*parsed) == address) return address;
  // Without a port it does not listen yet.
  return absl::NotFoundError(
      fmt::format("ps/{} is not registered at {}{}", index, where.text, there == nullptr ? "" : " with its port"));
}

}  // namespace

absl::StatusOr<std::unique_ptr<Membership>> Membership::join(const MembershipRequest& request) {
  // The owner and the keeper's thread have one each.
  absl::StatusOr<std::unique_ptr<Etcd>> ours = Etcd::open(request.where.endpoints);
  absl::StatusOr<std::unique_ptr<Etcd>> keepers = Etcd::open(request.where.endpoints);
  if (!ours.ok()) return ours.status();
  if (!keepers.ok()) return keepers.status();
  std::unique_ptr<Membership> membership(new Membership(request.where, *std::move(ours)));
  GRADRAIL_ASSIGN_OR_RETURN(const Claim claim, claim_place(*membership->etcd_, request));
  membership->task_ = claim.task;
  membership->sizes_ = claim.record.sizes;
  membership->host_ = claim.record.address;
  // ps_address() uses the index without a check: tasks ask for these ps only.
  membership->known_.resize(claim.record.sizes.ps);
  membership->keeper_ = std::make_unique<LeaseKeeper>(*std::move(keepers), key_of(request.where.job, claim.task),
                                                      claim.lease, claim.record);
  GRADRAIL_RETURN_IF_ERROR(membership->keeper_->start());
  return membership;
}

void Membership::publish(uint16_t port) { keeper_->publish_address(ps::to_string({.host = host_, .port = port})); }

absl::StatusOr<std::string> Membership::look_up(uint32_t index) {
  // All ps tasks: when etcd is away later, a lost one and its backup are both looked for.
  const absl::StatusOr<Etcd::Listing> listing = etcd_->list({.key = prefix_of(where_.job) + "ps/", .below = true});
  if (!listing.ok()) {
    // etcd gives addresses only: while it is away a ps is most likely where it was.
    if (!known_[index].last.empty()) return known_[index].last;
    return absl::UnavailableError(listing.status().message());
  }
  const Roster roster(where_.job, *listing);
  for (uint32_t i = 0; i < known_.size(); ++i) {
    absl::StatusOr<std::string> address = address_in(roster, where_, i);
    if (address.ok()) known_[i].last = *std::move(address);
  }
  return address_in(roster, where_, index);
}

absl::StatusOr<std::string> Membership::ps_address(uint32_t index) {
  Known& known = known_[index];
  // A worker asks before each attempt, and several attempts can follow within a millisecond.
  if (Clock::now() - known.asked < kLookupInterval) return known.answer;
  known.answer = look_up(index);
  known.asked = Clock::now();
  return known.answer;
}

absl::StatusOr<std::vector<std::string>> find_ps(const RendezvousUrl& where) {
  GRADRAIL_ASSIGN_OR_RETURN(const std::unique_ptr<Etcd> etcd, Etcd::open(where.endpoints));
  GRADRAIL_ASSIGN_OR_RETURN(const Etcd::Listing listing, etcd->list({.key = prefix_of(where.job), .below = true}));
  const Roster roster(where.job, listing);
  const Roster::Member* const first = roster.first_with_sizes();
  std::vector<std::string> addresses;
  // Without a record no size is known: ps/0 gives the error of a job that does not run.
  for (uint32_t i = 0; i < (first == nullptr ? 1 : first->record->sizes.ps); ++i) {
    GRADRAIL_ASSIGN_OR_RETURN(std::string address, address_in(roster, where, i));
    addresses.push_back(std::move(address));
  }
  return addresses;
}

}  // namespace gradrail::launch
