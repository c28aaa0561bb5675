#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "gradrail/clock.h"
#include "transport/capabilities.h"
#include "transport/completion.h"
#include "transport/connection.h"
#include "transport/memory_region.h"
#include "transport/rail_bytes.h"

namespace gradrail::transport {

/// An open transport device with its connections. It moves bytes and does not interpret them.
/// Threads  One owner thread at a time for everything here and for all connections and regions of this Context.
class Context {
 public:
  virtual ~Context() = default;
  Context() = default;
  Context(const Context&) = delete;
  Context& operator=(const Context&) = delete;

  virtual std::string_view name() const = 0;
  virtual Capabilities capabilities() const = 0;

  /// Errors  INVALID_ARGUMENT: memory this transport cannot reach (shm: not from SharedMemory; GPU memory that
  ///         capabilities().gpu does not support). FAILED_PRECONDITION: this device does not reach that GPU's memory.
  ///         RESOURCE_EXHAUSTED: limit.
  virtual absl::StatusOr<std::unique_ptr<MemoryRegion>> register_memory(MemorySpan memory, Access access) = 0;

  /// Accepts peers from now on. Once per Context; tcp accepts at several addresses.
  /// `address` is in the transport's own form (tcp: "host:port", port 0
  /// for any; shm: "" or a name). Returns the address for peers to connect to.
  /// Errors  ALREADY_EXISTS: address in use. INVALID_ARGUMENT: not an address.
  virtual absl::StatusOr<std::string> listen(const std::string& address) = 0;

  /// Opens a connection; posts may be made immediately. Later errors arrive as peer_lost.
  /// Errors  UNAVAILABLE: refused or unreachable. DEADLINE_EXCEEDED.
  virtual absl::StatusOr<Connection*> connect(const std::string& address, TimePoint deadline) = 0;

  /// Closes a connection and frees it; posted operations may be lost. The peer gets peer_lost. The context reports no
  /// further completion for it, not even one that was gathered but not yet returned by poll. After the return no put of
  /// that peer changes local memory: late data of this path cannot overwrite data of the next path. A peer that has
  /// mapped a region may write to it until it detects the loss.
  virtual void close(Connection* connection) = 0;

  /// Makes progress and reports up to out.size() completions. Never blocks.
  virtual size_t poll(absl::Span<Completion> out) = 0;

  /// Readable (poll(2)) when poll() has work to do, provided arm() returned true since the last poll().
  virtual int wait_fd() const = 0;
  /// Prepares to block on wait_fd. False: work is pending already, poll instead.
  virtual bool arm() = 0;

  /// The bytes of each rail, also of connections that are closed; empty: no connection has had a greeting of lanes.
  virtual RailTraffic rail_traffic() const { return {}; }
};

}  // namespace gradrail::transport
