#pragma once

#include <sys/uio.h>

#include <cstddef>
#include <cstdint>
#include <memory>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "transport/tcp/seal/aead.h"
#include "transport/tcp/seal/keys.h"

namespace gradrail::transport::tcp::seal {

// A direction of an encrypted connection is a sequence of records. Little endian.
//
//   0          4          8
//   +----------+----------+- - - - - - - -+-----------------+
//   | length   | check    | encrypted     | tag of 16 bytes |
//   +----------+----------+- - - - - - - -+-----------------+
//
// length   bytes of the encrypted part, 1 to kMaxRecordBytes
// check    first 4 bytes of AES-256(header key, record number ‖ length): a receiver detects an altered length before it
//          waits for the bytes
// The tag covers all bytes before it. The nonce is the record number, counted from 0 in each direction, XOR a value
// derived with the key; it is not sent. A repeated, missing or moved record therefore has a wrong check.

inline constexpr size_t kRecordHeaderBytes = 8;
inline constexpr size_t kRecordOverheadBytes = kRecordHeaderBytes + kTagBytes;
/// bench/results/sealed-2026-11-23.txt has the measurement.
inline constexpr size_t kMaxRecordBytes = size_t{32} * 1024;
/// Records under one key: 2 GiB at most, or 2^27 blocks of AES. That is far below the 2^24.5 records of 2^14 bytes that
/// RFC 8446 (section 5.5) permits, and below the limits of NIST SP 800-38D.
inline constexpr uint64_t kRecordsPerKey = uint64_t{1} << 16;

/// The records of one direction.
class RecordCipher {
 public:
  RecordCipher(Cipher cipher, const Key& direction, uint64_t records_per_key = kRecordsPerKey);

  /// Writes one record of `pieces`, which have `bytes` in all, to `out`.
  void seal(absl::Span<const iovec> pieces, size_t bytes, std::byte* out);

  /// Length of the encrypted part of the next record.
  /// Errors  DATA_LOSS: altered.
  absl::StatusOr<size_t> length_of(const std::byte* header);
  /// Decrypts a record in place, with a length that length_of() has returned.
  /// Errors  DATA_LOSS: altered.
  absl::Status open(std::byte* record, size_t length);

  uint64_t record_count() const { return number_; }

 private:
  void derive();
  void next_record();
  Nonce nonce() const;

  const Cipher cipher_;
  const uint64_t records_per_key_;
  uint64_t number_ = 0;  ///< number of the next record
  Key direction_;        ///< replaced together with the keys below: a leaked key opens no earlier record
  Nonce mask_{};
  std::unique_ptr<Aead> aead_;
  std::unique_ptr<BlockFunction> check_;
};

}  // namespace gradrail::transport::tcp::seal
