#include "transport/tcp/seal/record_cipher.h"

#include <string>

#include "base/check.h"
#include "base/little_endian.h"
#include "fmt/format.h"

namespace gradrail::transport::tcp::seal {

RecordCipher::RecordCipher(Cipher cipher, const Key& direction, uint64_t records_per_key)
    : cipher_(cipher), records_per_key_(records_per_key), direction_(direction) {
  GRADRAIL_CHECK(records_per_key_ > 0);
  derive();
}

void RecordCipher::derive() {
  aead_ = make_aead(cipher_, hkdf_expand_key(direction_.text(), "key"));
  check_ = std::make_unique<BlockFunction>(hkdf_expand_key(direction_.text(), "check"));
  const std::string mask = hkdf_expand(direction_.text(), "nonce", kNonceBytes);
  for (size_t i = 0; i < kNonceBytes; ++i) mask_[i] = static_cast<std::byte>(mask[i]);
}

Nonce RecordCipher::nonce() const {
  Nonce nonce = mask_;
  std::byte number[sizeof(number_)];
  store_le(&number[0], number_);
  for (size_t i = 0; i < sizeof(number); ++i) nonce[i] ^= number[i];
  return nonce;
}

void RecordCipher::next_record() {
  ++number_;
  GRADRAIL_CHECK(number_ != 0);  // a nonce would repeat; 2^64 records take 1,000 years at 10^9 a second
  if (number_ % records_per_key_ != 0) return;
  direction_ = hkdf_expand_key(direction_.text(), "next");
  derive();
}

void RecordCipher::seal(absl::Span<const iovec> pieces, size_t bytes, std::byte* out) {
  GRADRAIL_CHECK(bytes > 0 && bytes <= kMaxRecordBytes);
  const auto length = static_cast<uint32_t>(bytes);
  store_le(out, length);
  store_le(out + 4, (*check_)(number_, length));
  aead_->encrypt(nonce(), {out, kRecordHeaderBytes}, pieces, out + kRecordHeaderBytes);
  next_record();
}

absl::StatusOr<size_t> RecordCipher::length_of(const std::byte* header) {
  const auto length = load_le<uint32_t>(header);
  if (length > 0 && length <= kMaxRecordBytes && load_le<uint32_t>(header + 4) == (*check_)(number_, length))
    return length;
  return absl::DataLossError(fmt::format("the header of encrypted record {} was altered", number_));
}

absl::Status RecordCipher::open(std::byte* record, size_t length) {
  if (!aead_->decrypt(nonce(), {record, kRecordHeaderBytes}, record + kRecordHeaderBytes, length))
    return absl::DataLossError(fmt::format("encrypted record {} was altered", number_));
  next_record();
  return absl::OkStatus();
}

}  // namespace gradrail::transport::tcp::seal
