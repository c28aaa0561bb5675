#pragma once

#include <sys/types.h>
#include <sys/uio.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "gradrail/clock.h"
#include "transport/tcp/frame.h"
#include "transport/tcp/seal/keys.h"
#include "transport/tcp/seal/record_cipher.h"

namespace gradrail::transport::tcp::seal {

/// Settings of one context.
struct StreamOptions {
  std::string shared_key;  ///< Encryption::shared_key
  Cipher cipher = preferred_cipher();
  uint64_t records_per_key = kRecordsPerKey;
};

/// Bytes that one call of seal() can take: 128 KiB in each direction stay in the L2 cache.
inline constexpr size_t kSealBytesPerCall = 4 * kMaxRecordBytes;

/// A block of memory with one range in use.
struct Buffer {
  explicit Buffer(size_t capacity) : bytes(std::make_unique_for_overwrite<std::byte[]>(capacity)), size(capacity) {}
  size_t used() const { return end - begin; }
  size_t room() const { return size - end; }
  std::byte* data() { return &bytes[begin]; }
  void compact();
  void grow(size_t capacity);

  std::unique_ptr<std::byte[]> bytes;
  size_t size = 0;
  size_t begin = 0;
  size_t end = 0;
};

/// Encryption of both directions of one socket, from the seal frames on.
/// Invariants  1. Bytes leave in the order of the calls: the seal frame, then records.
///             2. next() returns bytes of verified records only.
///             3. Before the first verified record of the peer the buffers take 4 KiB.
/// Threads  Owner thread of the context.
class SealedStream {
 public:
  /// The connecting side, with the public key of the listener from its address.
  SealedStream(const StreamOptions& options, const PublicKey& listener);
  /// The listening side.
  SealedStream(const StreamOptions& options, const KeyPair& ours);

  // Agreement.
  /// The connecting side begins.
  void offer();
  /// Takes the seal frame of the peer; the listening side answers it.
  /// Errors  FAILED_PRECONDITION: another version or cipher. INVALID_ARGUMENT: not a public key.
  absl::Status agree(const FrameHeader& frame, absl::Span<const std::byte> public_key);
  bool agreed() const { return sender_.has_value(); }
  Cipher cipher() const { return cipher_; }

  // Sending.
  /// Encrypts bytes from the front of `pieces` as far as the buffer has room, and returns their number.
  uint64_t seal(absl::Span<const iovec> pieces);
  bool has_unsent() const { return outgoing_.used() > 0; }
  /// Sends the unsent bytes; returns the result of send(2).
  ssize_t flush(int fd);
  /// The unsent bytes and then `text`, which ends the stream.
  std::string final_bytes(std::string_view text);

  // Receiving, after the agreement.
  /// Receives into the buffer; returns the result of recv(2).
  ssize_t receive(int fd);
  /// Whether a receive() found fewer bytes than it requested: another call would find none. Resets the flag.
  bool take_drained() { return std::exchange(drained_, false); }
  bool has_received() const { return incoming_.used() > 0; }
  /// The content of the next record, valid until the next call of this object; empty: incomplete.
  /// Errors  DATA_LOSS: altered.
  absl::StatusOr<absl::Span<const std::byte>> next();
  bool has_verified() const { return receiver_.has_value() && receiver_->record_count() > 0; }
  /// Time for which a record has been incomplete without progress. The owner calls it at intervals. A suspension of this
  /// process resets the time, because the rest of the record may wait in the socket.
  Duration stalled(TimePoint now, bool was_suspended);

 private:
  std::string seal_frame() const;
  void append(std::string_view text);
  void seal_record(absl::Span<const iovec> pieces, size_t bytes);

  // Set once.
  const StreamOptions options_;
  const bool is_listener_;
  const PublicKey listener_;
  const std::optional<KeyPair> static_pair_;  ///< keys of the listening side

  // Owner thread.
  std::optional<KeyPair> fresh_pair_;  ///< keys until the agreement
  Cipher cipher_;
  std::optional<RecordCipher> sender_;
  std::optional<RecordCipher> receiver_;
  Buffer outgoing_;
  Buffer incoming_;
  bool drained_ = false;
  bool waits_for_rest_ = false;  ///< next() has found an incomplete record
  uint64_t received_bytes_ = 0;
  uint64_t looked_bytes_ = 0;  ///< received_bytes_ when stalled_since_ was set
  TimePoint stalled_since_ = TimePoint::max();
};

}  // namespace gradrail::transport::tcp::seal
