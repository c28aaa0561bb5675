#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "transport/memory_region.h"

namespace gradrail::transport {

/// A peer's region in one connection (Connection::import).
enum class RemoteRegion : uint32_t {};

struct LocalSlice {
  const MemoryRegion* region = nullptr;
  size_t offset = 0;
  size_t bytes = 0;
};

struct RemoteSlice {
  RemoteRegion region{};
  uint64_t offset = 0;
};

/// The two ends of a put.
struct Transfer {
  LocalSlice source;
  RemoteSlice target;
};

class PreparedPuts;

struct PutOptions {
  std::optional<uint64_t>
      immediate;     ///< notifies the peer by put_arrived; without it the put may wait for the next one
  uint64_t tag = 0;  ///< != 0: requests a put_done with this tag
  std::optional<uint32_t> lane = {};  ///< less than Connection::lanes(); without it the connection chooses one
};

/// A peer. Owned by its Context; valid until Context::close.
/// Ordering  Puts of one connection become visible in the order posted, at the latest when the notice of a later put
///           arrives. Messages and gets are not ordered against puts and may overtake bulk data.
/// Lanes     A group of puts begins behind a put with an immediate and ends with the next one. A connection of several
///           lanes (transport/rails) orders the puts of each group. It does not order groups against each other.
/// Errors    RESOURCE_EXHAUSTED from a post: queue full, or the peer's memory is still being mapped; poll, then try
///           again. INVALID_ARGUMENT: slice outside its region. UNAVAILABLE: peer lost. A peer that refuses an
///           operation (wrong key, out of bounds, no permission) ends the connection: both sides see peer_lost.
/// Threads   Owner thread of the Context.
class Connection {
 public:
  virtual ~Connection() = default;
  Connection() = default;
  Connection(const Connection&) = delete;
  Connection& operator=(const Connection&) = delete;

  /// Makes a peer's key usable here. INVALID_ARGUMENT: not a key of this transport.
  virtual absl::StatusOr<RemoteRegion> import(std::string_view key) = 0;

  /// Starts writing `source` into the peer's memory. The source must not change before put_done or an answer that
  /// implies arrival. A put of 0 bytes is legal and only notifies.
  virtual absl::Status put(LocalSlice source, RemoteSlice target, PutOptions options) = 0;

  /// Prepares a group of puts that is posted many times. The last one notifies with the immediate.
  /// Errors  Those of put(), now or at a post.
  virtual absl::StatusOr<std::unique_ptr<PreparedPuts>> prepare(absl::Span<const Transfer> puts, uint64_t immediate);

  /// Starts reading the peer's memory into `target`; get_done carries `tag`.
  virtual absl::Status get(LocalSlice target, RemoteSlice source, uint64_t tag) = 0;

  /// Sends a copy of up to Capabilities::max_message_bytes.
  virtual absl::Status send(absl::Span<const std::byte> message) = 0;

  /// The peer's region in the address space of this process, valid as long as the connection exists. Reading needs
  /// remote_read, writing remote_write.
  /// Errors  RESOURCE_EXHAUSTED: not mapped yet; poll and try again. UNIMPLEMENTED: no direct_map.
  virtual absl::StatusOr<std::byte*> map(RemoteRegion region) = 0;

  /// The parallel connections behind this one (transport/rails): each carries whole groups of puts.
  virtual uint32_t lanes() const { return 1; }
  /// The part that could not be reached when it was opened, with the reasons, for people; "": it is whole. Another
  /// connection to the same address may reach more.
  virtual std::string left_out() const { return ""; }

  /// Human-readable: path() and both ends, `tcp 10.0.0.2:40112 > 10.0.0.1:2223`.
  virtual std::string describe() const = 0;

  /// The transport and device that carry the bytes, for logs and counters: `tcp`, `ofi verbs rxe0`. Begins with the
  /// transport's name.
  virtual std::string path() const {
    const std::string whole = describe();
    return whole.substr(0, whole.find(' '));
  }

  /// Adds to the bytes that a lane has received (Context::rail_traffic). Only headers of the owner have their number.
  virtual void count_received(uint32_t /*lane*/, uint64_t /*bytes*/) {}

  /// Whether an RDMA device carries the bytes. May be known only after the first put.
  virtual bool uses_rdma() const { return false; }

  /// A value of the owner; the transport does not read it.
  void set_user_data(uint64_t value) { user_data_ = value; }
  uint64_t user_data() const { return user_data_; }

 private:
  uint64_t user_data_ = 0;
};

}  // namespace gradrail::transport
