#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "transport/context.h"

namespace gradrail::transport {

struct OpenOptions {
  std::string bind_host;  ///< tcp: source address of outgoing connections; "" lets the kernel choose
};

/// One transport of this build.
struct Transport {
  std::string_view name;
  std::string_view purpose;
  std::function<absl::StatusOr<std::unique_ptr<Context>>(const OpenOptions&)> open;
  /// Whether two tasks can use it only on one host (same kernel, same network namespace: see host_id()).
  bool same_host_only = false;
  /// Only between contexts of one process: for tests and simulation, never chosen by itself.
  bool in_process_only = false;
};

/// The one list of transports, in order of preference.
const std::vector<Transport>& transports();

/// The transport of this name. NOT_FOUND names those that exist.
absl::StatusOr<const Transport*> find_transport(std::string_view name);

/// Equal on two tasks if and only if they can share memory through shm: boot id, user and network namespace.
std::string host_id();

}  // namespace gradrail::transport
