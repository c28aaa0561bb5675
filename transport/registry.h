#pragma once

#include <chrono>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "gradrail/clock.h"
#include "transport/context.h"

namespace gradrail::transport {

/// Encryption of data connections.
struct Encryption {
  /// Key of all tasks of the job. Only its holders complete the handshake of a connection. "": the address alone
  /// authenticates the listening side, so that its source must be authenticated.
  std::string shared_key;
};

inline constexpr Duration kPathTimeout = std::chrono::seconds(10);

struct OpenOptions {
  std::string bind_host;  ///< address of this task's network interface; "" lets the transport choose
  /// Refuse to open where no RDMA device would carry the bytes. ucx and ofi run over sockets too, but there tcp is
  /// better.
  bool rdma_only = false;
  std::string ofi_provider;  ///< ofi: the libfabric provider to use and no other, "verbs"; "": the best
  /// tcp, and the side channel of ucx and ofi: a host that acknowledges nothing for so long is lost. ofi: so is a
  /// device that finishes no transfer, while its peer answers.
  Duration path_timeout = kPathTimeout;
  /// tcp encrypts all data. shm ignores it, because its data stays on one host. Other transports refuse to open.
  std::optional<Encryption> encryption = {};
};

/// A limit of another phase of a connection. It grows with a path_timeout above the default: that network is slow.
inline Duration scaled_limit(Duration limit, Duration path_timeout) {
  const double factor = std::chrono::duration<double>(path_timeout) / kPathTimeout;
  return factor > 1 ? std::chrono::duration_cast<Duration>(limit * factor) : limit;
}

/// A transport: built in, or in a plug-in that is loaded when it is first opened.
struct Transport {
  std::string name;
  std::string purpose;
  /// Errors  UNAVAILABLE, FAILED_PRECONDITION, NOT_FOUND: why it cannot be used here, for people.
  std::function<absl::StatusOr<std::unique_ptr<Context>>(const OpenOptions&)> open;
  /// Whether two tasks can use it only on one host (same kernel, same network namespace: host_id()).
  bool same_host_only = false;
  bool plugin = false;
  bool has_lanes = false;  ///< its connections may have several lanes (transport/rails/bundle_context.h)
  /// Whether "auto" excludes it: a third party's plug-in is used only on request.
  bool by_name_only = false;
};

/// The one list of transports, in order of preference. It holds the built-in transports, ucx and ofi with or without
/// their plug-ins, all other transports of the plug-in folders (plugin_loader.h), and those of add_transport().
const std::deque<Transport>& transports();

/// Adds a transport of this program behind the others, such as the network of a simulation. No other thread uses the
/// list at the same time. Pointers to transports stay valid.
void add_transport(Transport transport);

/// The transport of this name. NOT_FOUND names those that exist.
absl::StatusOr<const Transport*> find_transport(std::string_view name);

/// Equal on two tasks if and only if they can share memory through shm: boot id, user and network namespace.
std::string host_id();

}  // namespace gradrail::transport
