#include "launch/etcd/ps_lookup.h"

#include <algorithm>
#include <string_view>

#include "absl/memory/memory.h"
#include "base/parse_number.h"
#include "base/status.h"
#include "fmt/format.h"
#include "gradrail/cluster.h"
#include "launch/etcd/registration.h"

namespace gradrail::launch {
namespace {

/// A task that tries to reach a ps asks before each try.
constexpr auto kLookupInterval = std::chrono::milliseconds(200);

const Etcd::Entry* find(const Etcd::Listing& listing, const RendezvousUrl& where, uint32_t index) {
  const std::string key = fmt::format("{}{}", ps_prefix(where.job), index);
  for (const Etcd::Entry& entry : listing.entries)
    if (entry.key == key) return &entry;
  return nullptr;
}

absl::StatusOr<std::string> address_in(const Etcd::Listing& listing, const RendezvousUrl& where, uint32_t index) {
  const Etcd::Entry* const there = find(listing, where, index);
  // parse_host_port() adds a default port, so that only a text with a port stays equal.
  if (there != nullptr) {
    const absl::StatusOr<HostPort> parsed = parse_host_port(there->value);
    if (parsed.ok() && to_string(*parsed) == there->value) return there->value;
  }
  return absl::NotFoundError(
      fmt::format("ps/{} is not registered at {}{}", index, where.text, there == nullptr ? "" : " with its port"));
}

}  // namespace

absl::StatusOr<std::unique_ptr<PsLookup>> PsLookup::open(const RendezvousUrl& where, uint32_t ps_count) {
  GRADRAIL_ASSIGN_OR_RETURN(std::unique_ptr<Etcd> etcd, Etcd::open(where.endpoints));
  return absl::WrapUnique(new PsLookup(where, ps_count, std::move(etcd)));
}

absl::StatusOr<std::string> PsLookup::ask(uint32_t index) {
  // All ps tasks: when etcd is away later, a lost one and its backup are both looked for.
  const absl::StatusOr<Etcd::Listing> listing = etcd_->list(ps_prefix(where_.job));
  if (!listing.ok()) {
    // etcd gives addresses only: while it is away a ps is most likely where it was.
    if (!known_[index].last.empty()) return known_[index].last;
    return absl::UnavailableError(listing.status().message());
  }
  for (uint32_t i = 0; i < known_.size(); ++i) {
    absl::StatusOr<std::string> address = address_in(*listing, where_, i);
    if (address.ok()) known_[i].last = *std::move(address);
  }
  return address_in(*listing, where_, index);
}

absl::StatusOr<std::string> PsLookup::address(uint32_t index) {
  Known& known = known_[index];
  // A worker asks before each attempt, and several attempts can follow within a millisecond.
  if (Clock::now() - known.asked < kLookupInterval) return known.answer;
  known.answer = ask(index);
  known.asked = Clock::now();
  return known.answer;
}

absl::StatusOr<std::vector<std::string>> find_ps(const RendezvousUrl& where) {
  GRADRAIL_ASSIGN_OR_RETURN(const std::unique_ptr<Etcd> etcd, Etcd::open(where.endpoints));
  GRADRAIL_ASSIGN_OR_RETURN(const Etcd::Listing listing, etcd->list(ps_prefix(where.job)));
  uint32_t count = 1;  // of a job that does not run, ps/0 is missing
  for (const Etcd::Entry& entry : listing.entries) {
    const auto index = parse_number<uint32_t>(std::string_view(entry.key).substr(ps_prefix(where.job).size()));
    if (index) count = std::max(count, *index + 1);
  }
  std::vector<std::string> addresses;
  for (uint32_t i = 0; i < count; ++i) {
    GRADRAIL_ASSIGN_OR_RETURN(std::string address, address_in(listing, where, i));
    addresses.push_back(std::move(address));
  }
  return addresses;
}

}  // namespace gradrail::launch
