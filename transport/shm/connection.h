#pragma once

#include <sys/types.h>

#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "base/check.h"
#include "base/rate_limited_log.h"
#include "transport/completion.h"
#include "transport/connection.h"
#include "transport/shm/control_channel.h"
#include "transport/shm/memory_region.h"
#include "transport/shm/ring.h"

namespace gradrail::transport::shm {

/// Room for the messages of one poll; they stay valid until the next.
class MessageArena {
 public:
  MessageArena() : bytes_(16 * kMaxMessageBytes) {}
  void reset() { used_ = 0; }
  bool has_room() const { return bytes_.size() - used_ >= kMaxMessageBytes; }
  absl::Span<std::byte> room() {
    GRADRAIL_CHECK(has_room());
    return absl::MakeSpan(bytes_).subspan(used_, kMaxMessageBytes);
  }
  /// Keeps the first `bytes` of room().
  absl::Span<const std::byte> keep(size_t bytes) {
    GRADRAIL_CHECK(bytes <= kMaxMessageBytes);
    const absl::Span<const std::byte> kept = absl::MakeConstSpan(bytes_).subspan(used_, bytes);
    used_ += (bytes + 15) & ~size_t{15};  // the reader may look at it as numbers
    return kept;
  }

 private:
  std::vector<std::byte> bytes_;
  size_t used_ = 0;
};

/// Parts of a Connection, available once the hello has been written or read.
struct ConnectionParts {
  enum class Side { connector, acceptor };
  Side side = Side::connector;
  ControlChannel channel;
  Mapping rings;
  FileDescriptor peer_bell;  ///< a connector receives it with the welcome
  const common::RegionTable* regions = nullptr;
  RateLimitedLog* log = nullptr;  ///< log of the context
  pid_t peer_pid = 0;
  std::string address;
};

/// Invariants
///   1. cause_ is set once, by lose(); afterwards the channel is closed and posts are refused.
///   2. peer_lost is reported after everything that the peer published before its end (drain_), and last.
class ShmConnection final : public transport::Connection {
 public:
  explicit ShmConnection(ConnectionParts parts);

  // Called by users; connection_datapath.cc except for import and describe.
  absl::StatusOr<RemoteRegion> import(std::string_view key) override;
  absl::Status put(LocalSlice source, RemoteSlice target, PutOptions options) override;
  absl::StatusOr<std::unique_ptr<PreparedPuts>> prepare(absl::Span<const Transfer> puts, uint64_t immediate) override;
  absl::Status get(LocalSlice target, RemoteSlice source, uint64_t tag) override;
  absl::Status send(absl::Span<const std::byte> message) override;
  absl::StatusOr<std::byte*> map(RemoteRegion region) override;
  std::string describe() const override;

  /// A put with checked addresses.
  struct Copy {
    std::byte* to = nullptr;
    const std::byte* from = nullptr;
    size_t bytes = 0;
  };
  /// Copies and notifies: PreparedPuts::post() for all puts of a group.
  absl::Status post(absl::Span<const Copy> copies, uint64_t immediate);

  // Called by the Context; hot.
  /// Whether poll() has nothing to report.
  bool is_quiet() const { return consumer_.empty() && local_.empty() && cause_.ok(); }
  size_t poll(absl::Span<Completion> out, MessageArena& arena);
  bool has_work() const;
  void announce_sleep() { consumer_.announce_sleep(); }
  void announce_awake() { consumer_.announce_awake(); }

  // Called by the Context; rare.
  void service_channel();
  /// True while an answer is awaited, so that a poll should look at the socket more often.
  bool expects_answer() const { return cause_.ok() && (!peer_bell_ || regions_requested_ > 0); }
  int channel_fd() const { return channel_.fd(); }
  void send_disconnect();

 private:
  struct ImportedRegion {
    RegionKey key;
    Mapping mapping;  ///< empty until the owner has answered
    std::byte* data() const { return mapping.data(); }
    Access access() const { return static_cast<Access>(key.access); }
  };
  enum class Drain { yes, no };

  absl::Status request(const RegionKey& key);
  absl::Status handle(Packet& packet);
  absl::Status handle_welcome(Packet& packet);
  absl::Status handle_fetch(const RegionKey& key);
  absl::Status handle_region(Packet& packet);
  absl::Status answer_fetch(const RegionKey& key, int fd);
  /// Ends the connection from this side and sends the reason to the peer.
  void refuse(const absl::Status& why, Drain drain);
  void lose(absl::Status cause, Drain drain);
  absl::Status lost_error() const;

  absl::StatusOr<std::byte*> locate(RemoteSlice slice, size_t bytes, Access wanted);
  absl::StatusOr<Copy> copy_of(const LocalSlice& source, const RemoteSlice& target);
  absl::Status check_room(size_t entries);
  absl::Status check_local_room(uint64_t tag) const;
  void wake_peer();
  size_t poll_ring(absl::Span<Completion> out, MessageArena& arena);

  // Set once.
  const ConnectionParts::Side side_;
  const Mapping rings_;
  const common::RegionTable* const regions_;
  RateLimitedLog& rate_limited_log_;  ///< log of the context
  const pid_t peer_pid_;
  const std::string address_;

  // Owner thread, hot.
  RingProducer producer_;
  RingConsumer consumer_;
  std::vector<ImportedRegion> imported_;  ///< RemoteRegion is the index
  std::deque<Completion> local_;          ///< happened here, not yet reported

  // Owner thread, rare.
  ControlChannel channel_;
  FileDescriptor peer_bell_;
  size_t regions_requested_ = 0;
  absl::Status cause_;
  bool drain_ = true;
  bool lost_reported_ = false;
};

}  // namespace gradrail::transport::shm
