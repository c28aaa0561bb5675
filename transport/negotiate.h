#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

namespace gradrail::transport {

/// "auto" or a comma-separated list in order of preference. INVALID_ARGUMENT names the unknown one and those there are.
absl::StatusOr<std::vector<std::string>> parse_transport_order(std::string_view text);

/// What the other end said about one of its transports.
struct PeerTransport {
  std::string name;
  std::string refused;  ///< why it cannot be used there; "": usable
};

/// One transport that was thought of for a pair of tasks.
struct Candidate {
  std::string name;
  std::string refused;  ///< why not; "": may be tried, or is in use
  bool never = false;   ///< what refused it will not change while these two tasks live
};

/// Weighs our order against what the peer has. Every transport of the order is in the answer, refused ones with the
/// reason; the rest are to be tried in this order. Pure.
std::vector<Candidate> weigh(const std::vector<std::string>& order, const std::vector<PeerTransport>& peer,
                             std::string_view our_host_id, std::string_view peer_host_id);

/// For people: "shm" or "tcp (shm refused: …)", with the reasons against all that would have been preferred.
/// `path`: Connection::path() of the chosen one, where it is known.
std::string explain(const std::vector<Candidate>& candidates, std::string_view chosen, std::string_view path = "");

/// Where none is left: "ucx, ofi: no RDMA device …; tcp: …", and what to do about it.
std::string explain_none(const std::vector<Candidate>& candidates);

}  // namespace gradrail::transport
