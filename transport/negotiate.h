#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

namespace gradrail::transport {

/// "auto" or a comma-separated list in order of preference. INVALID_ARGUMENT names the unknown one and those there are.
absl::StatusOr<std::vector<std::string>> parse_transport_order(std::string_view text);

/// Answer of the peer about one of its transports.
struct PeerTransport {
  std::string name;
  std::string refused;  ///< reason why it cannot be used there; "": usable
};

/// A transport that was considered for a pair of tasks.
struct Candidate {
  std::string name;
  std::string refused;  ///< reason against it; "": may be tried, or is in use
  bool never = false;   ///< the reason will not change while these two tasks run
};

/// Ranks our order against the peer's transports. The answer holds every transport of the order, refused ones with the
/// reason; the rest are candidates in this order. `encrypts_data`: this task has --encrypt-data. Pure.
std::vector<Candidate> rank_candidates(const std::vector<std::string>& order, const std::vector<PeerTransport>& peer,
                                       std::string_view our_host_id, std::string_view peer_host_id,
                                       bool encrypts_data = false);

/// Text for people: "shm" or "tcp (shm refused: …)", with the reasons against all preferred transports.
/// `path`: Connection::path() of the chosen one, where it is known.
std::string explain(const std::vector<Candidate>& candidates, std::string_view chosen, std::string_view path = "");

/// The reasons against all: "ucx, ofi: no RDMA device …; tcp: …; ".
std::string explain_reasons(const std::vector<Candidate>& candidates);

/// Text for the case that none is left: these reasons, and the remedy.
std::string explain_none(const std::vector<Candidate>& candidates);

}  // namespace gradrail::transport
