#pragma once

#include <deque>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "transport/common/imported_regions.h"
#include "transport/connection.h"
#include "transport/tcp/context.h"
#include "transport/tcp/event_source.h"
#include "transport/tcp/frame.h"
#include "transport/tcp/memory_region.h"
#include "transport/tcp/seal/sealed_stream.h"
#include "transport/tcp/send_queue.h"
#include "transport/tcp/socket.h"

namespace gradrail::transport::tcp {

/// A socket and its data.
/// Invariants  1. A payload is only read to the place that its header was permitted to name, and only while that region
///             exists.
///             2. peer_lost is reported once, after all earlier arrivals. A pending connection (accepted, no hello yet)
///                reports nothing.
class TcpConnection final : public Connection, public EventSource {
 public:
  enum class Side { connected, accepted };
  /// `seal` is null without encryption.
  TcpConnection(TcpContext& context, FileDescriptor fd, Side side, std::unique_ptr<seal::SealedStream> seal);
  ~TcpConnection() override;

  // Connection.
  absl::StatusOr<RemoteRegion> import(std::string_view key) override;
  absl::Status put(LocalSlice source, RemoteSlice target, PutOptions options) override;
  absl::StatusOr<std::unique_ptr<PreparedPuts>> prepare(absl::Span<const Transfer> puts, uint64_t immediate) override;
  absl::Status get(LocalSlice target, RemoteSlice source, uint64_t tag) override;
  absl::Status send(absl::Span<const std::byte> message) override;
  absl::StatusOr<std::byte*> map(RemoteRegion region) override;
  std::string describe() const override;
  std::string path() const override { return seal_ == nullptr ? "tcp" : "tcp encrypted"; }

  /// A group of puts with its frames. They stay at one address: `pieces` points to `headers`.
  struct PreparedFrames {
    absl::InlinedVector<SendOp, 2> puts;
    absl::InlinedVector<HeaderBytes, 2> headers;
    absl::InlinedVector<iovec, 4> pieces;  ///< empty: the group needs more frames than one send takes
    uint64_t bytes = 0;
  };
  /// PreparedPuts::post() for all puts of a group. Without earlier frames in the queue, one send takes it.
  absl::Status post(const PreparedFrames& frames);

  // The context uses these functions.
  void start_handshake();
  void read();
  void flush();
  void writable();
  /// Closes the connection to a peer that has been silent at each call for this time; called at intervals. A silence
  /// before a suspension of this process does not count: answers may wait in its socket.
  void check_alive(TimePoint now, Duration timeout, bool was_suspended);
  bool lost() const { return state_ == State::lost; }
  bool sendable() const {
    const bool is_queued = !queue_.empty() && (seal_ == nullptr || seal_->agreed());
    return !lost() && (is_queued || (seal_ != nullptr && seal_->has_unsent())) && !blocked_ && send_error_.ok();
  }
  bool flush_listed = false;  ///< listed in the context's connections to flush
  bool read_listed = false;   ///< listed in the context's connections with received frames
  TimePoint hello_deadline{};
  uint64_t listener_index = 0;  ///< listener of an accepted connection
  /// Closes the socket without a report: the owner has closed it, or the context ends.
  void close_silently();
  void lose(absl::Status cause, bool altered = false);

 private:
  enum class State : uint8_t {
    pending,  ///< accepted, no hello yet
    open,
    lost
  };
  enum class ReadResult { again, dry, stop };

  /// Bytes received beyond the payload in progress. A small put and its header arrive with one call, and the put is
  /// copied once more. This saved 2 us of a 21 us round trip of 4 KiB. Larger payloads are read to their place.
  static constexpr size_t kFewAheadBytes = 8 * 1024;
  static constexpr size_t kAheadBytes = 32 * 1024;
  static constexpr size_t kMostAheadPayload = kAheadBytes - kFewAheadBytes;  ///< payload together with its headers

  struct PendingGet {
    uint64_t number = 0;
    std::byte* target = nullptr;
    uint64_t bytes = 0;
    uint64_t received_bytes = 0;
    uint64_t tag = 0;
  };

  absl::StatusOr<const RegionKey*> remote(RemoteSlice slice, uint64_t bytes) const;
  absl::StatusOr<SendOp> put_of(const LocalSlice& source, const RemoteSlice& target, const PutOptions& options) const;
  absl::Status check_post(size_t operations = 1) const;

  // Receiving.
  ReadResult read_once(uint64_t& budget_bytes);
  ReadResult read_sealed(uint64_t& budget_bytes);
  ReadResult read_failed(ssize_t result);
  bool consume_ahead();
  void payload_received(uint64_t bytes);
  bool not_a_peer();
  void header_complete(const HeaderBytes& header);
  absl::Status begin_frame(const FrameHeader& frame);
  absl::Status begin_hello(const FrameHeader& frame);
  absl::Status begin_put(const FrameHeader& frame);
  absl::Status begin_get_data(const FrameHeader& frame);
  absl::Status answer_get(const FrameHeader& frame);
  bool target_alive() const;
  void finish_frame();
  void finish_seal();
  void finish_message();
  void finish_get_data();
  absl::Status ended(std::string_view how) const;

  // Sending.
  void post(SendOp op, bool ring);
  bool send_once(uint64_t& budget_bytes);
  void fail_to_send(int error);
  bool send_sealed(uint64_t& budget_bytes);
  void sent(uint64_t bytes);
  bool answers_alive();
  void set_blocked(bool blocked);
  void refuse(const absl::Status& why, bool altered = false);
  void hand_over(std::string final_bytes);

  // Set once.
  TcpContext& context_;
  const Side side_;
  const std::string name_;

  // Owner thread.
  FileDescriptor fd_;
  State state_;
  bool handshake_done_ = false;
  common::ImportedRegions<RegionKey> imported_;

  const std::unique_ptr<seal::SealedStream> seal_;  ///< null without encryption
  SendQueue queue_;
  std::deque<PendingGet> gets_;  ///< sorted by request, which is the order of the answers
  uint64_t next_get_ = 0;
  bool blocked_ = false;
  TimePoint unanswered_since_ = TimePoint::max();
  absl::Status send_error_;  ///< sending has ended; reading continues for earlier frames of the peer

  /// Buffer of received bytes. It grows with encryption for the rest of a header and one record as soon as the peer has
  /// proven its keys.
  std::unique_ptr<std::byte[]> ahead_ = std::make_unique_for_overwrite<std::byte[]>(kAheadBytes);
  size_t ahead_limit_ = kFewAheadBytes;  ///< bytes of ahead_ in use: kAheadBytes while payloads fit there
  size_t ahead_begin_ = 0;
  size_t ahead_end_ = 0;
  FrameHeader frame_;
  bool in_payload_ = false;
  std::byte* target_ = nullptr;  ///< destination of the rest of the payload
  uint64_t target_bytes_ = 0;
  common::MessageBuffer body_;  ///< body of a message or refusal being received
};

}  // namespace gradrail::transport::tcp
