#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "absl/container/inlined_vector.h"
#include "absl/status/status.h"
#include "absl/types/span.h"
#include "transport/connection.h"

namespace gradrail::transport {

/// A group of puts that is posted many times: the slices stay, and the bytes in them change. A transport checks slices,
/// keys and rights once, in Connection::prepare(), and a post() is as short as its device permits.
/// Lifetime  post() needs the connection and the regions. The destructor needs neither.
/// Threads   Owner thread of the Context.
class PreparedPuts {
 public:
  virtual ~PreparedPuts() = default;
  PreparedPuts() = default;
  PreparedPuts(const PreparedPuts&) = delete;
  PreparedPuts& operator=(const PreparedPuts&) = delete;

  /// Posts the group from its put `posted` on, and raises `posted` by the puts that the transport has taken. The caller
  /// begins a transfer with 0. The last put notifies the peer with the immediate of the group.
  /// Errors  RESOURCE_EXHAUSTED: no room for the rest; poll, and call again before any other put of this connection.
  ///         Others as Connection::put().
  virtual absl::Status post(size_t& posted) = 0;
};

/// Puts one after the other with Connection::put(); the same contract as PreparedPuts::post().
absl::Status post_each(Connection& connection, absl::Span<const Transfer> puts, uint64_t immediate, size_t& posted);

}  // namespace gradrail::transport
