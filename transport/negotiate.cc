#include "transport/negotiate.h"

#include <algorithm>

#include "fmt/format.h"
#include "fmt/ranges.h"
#include "transport/registry.h"

namespace gradrail::transport {

namespace {

absl::Status no_such_transport(std::string_view name) {
  std::vector<std::string> names = {"auto"};
  for (const Transport& transport : transports()) {
    names.push_back(transport.name);
  }
  return absl::InvalidArgumentError(
      fmt::format("no transport '{}' between tasks (there are {})", name, fmt::join(names, ", ")));
}

}  // namespace

absl::StatusOr<std::vector<std::string>> parse_transport_order(std::string_view text) {
  std::vector<std::string> order;
  if (text == "auto") {
    for (const Transport& transport : transports()) {
      if (!transport.by_name_only) order.push_back(transport.name);
    }
    return order;
  }
  while (!text.empty()) {
    const std::string name(text.substr(0, text.find(',')));
    text.remove_prefix(std::min(text.size(), name.size() + 1));
    const absl::StatusOr<const Transport*> found = find_transport(name);
    if (!found.ok()) return no_such_transport(name);
    // A name that is repeated keeps its first rank.
    if (std::find(order.begin(), order.end(), name) == order.end()) order.push_back(name);
  }
  if (order.empty()) return absl::InvalidArgumentError("no transport named (try auto)");
  return order;
}

std::vector<Candidate> rank_candidates(const std::vector<std::string>& order, const std::vector<PeerTransport>& peer,
                                       std::string_view our_host_id, std::string_view peer_host_id,
                                       bool encrypts_data) {
  std::vector<Candidate> candidates;
  for (const std::string& name : order) {
    const auto theirs = std::find_if(peer.begin(), peer.end(), [&](const PeerTransport& t) { return t.name == name; });
    const absl::StatusOr<const Transport*> ours = find_transport(name);
    std::string refused;
    if (!ours.ok()) {
      refused = "not in this build";
    } else if (encrypts_data && (*ours)->plugin) {
      refused = fmt::format("excluded by this task's --encrypt-data: {} carries data unencrypted", name);
    } else if (theirs == peer.end()) {
      refused = "the other end does not offer it";
    } else if (!theirs->refused.empty()) {
      refused = fmt::format("not usable at the other end: {}", theirs->refused);
    } else if ((*ours)->same_host_only && our_host_id != peer_host_id) {
      refused = "not on the same host (or another user or network namespace)";
    }
    const bool never = !refused.empty();
    candidates.push_back({name, std::move(refused), never});
  }
  return candidates;
}

std::string explain(const std::vector<Candidate>& candidates, std::string_view chosen, std::string_view path) {
  std::vector<std::string> reasons;
  for (const Candidate& candidate : candidates) {
    // Transports behind the chosen one had a lower rank: the reasons against them explain nothing.
    if (candidate.name == chosen) break;
    if (!candidate.refused.empty()) reasons.push_back(fmt::format("{} refused: {}", candidate.name, candidate.refused));
  }
  if (path.empty()) path = chosen;
  if (reasons.empty()) return std::string(path);
  return fmt::format("{} ({})", path, fmt::join(reasons, "; "));
}

std::string explain_reasons(const std::vector<Candidate>& candidates) {
  std::vector<std::pair<std::string, std::string>> by_reason;  // names, why
  for (const Candidate& candidate : candidates) {
    const auto same = std::find_if(by_reason.begin(), by_reason.end(),
                                   [&](const auto& reason) { return reason.second == candidate.refused; });
    if (same == by_reason.end()) {
      by_reason.emplace_back(candidate.name, candidate.refused);
    } else {
      same->first += ", " + candidate.name;
    }
  }
  std::string text;
  for (const auto& [names, why] : by_reason) text += fmt::format("{}: {}; ", names, why);
  return text;
}

std::string explain_none(const std::vector<Candidate>& candidates) {
  const bool tried_tcp =
      std::any_of(candidates.begin(), candidates.end(), [](const Candidate& each) { return each.name == "tcp"; });
  return fmt::format("{}`gradrail doctor` reports what is missing{}", explain_reasons(candidates),
                     tried_tcp ? "" : ", and --transport auto falls back to tcp");
}

}  // namespace gradrail::transport
