#include "transport/tcp/seal/sealed_stream.h"

#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cstring>

#include "base/check.h"
#include "base/status.h"
#include "fmt/format.h"

namespace gradrail::transport::tcp::seal {
namespace {

constexpr size_t kBufferBytes = kSealBytesPerCall / kMaxRecordBytes * (kMaxRecordBytes + kRecordOverheadBytes);
/// The first record of each side has the hello, and its length is bounded: an unknown peer gets little memory.
constexpr size_t kFirstRecordBytes = 1024;
constexpr size_t kFirstBufferBytes = 2048;
static_assert(kFirstRecordBytes + kRecordOverheadBytes + kHeaderBytes + kSealBytes <= kFirstBufferBytes);
/// Pieces of one record: each frame has two.
constexpr size_t kMaxPieces = 64;

std::string_view text_of(const HeaderBytes& header) {
  return {reinterpret_cast<const char*>(header.data()), header.size()};
}

}  // namespace

void Buffer::compact() {
  if (begin > 0 && end > begin) std::memmove(bytes.get(), data(), used());
  end -= begin;
  begin = 0;
}

void Buffer::grow(size_t capacity) {
  Buffer larger(capacity);
  std::memcpy(larger.bytes.get(), data(), used());
  larger.end = used();
  *this = std::move(larger);
}

SealedStream::SealedStream(const StreamOptions& options, const PublicKey& listener)
    : options_(options),
      is_listener_(false),
      listener_(listener),
      cipher_(options.cipher),
      outgoing_(kFirstBufferBytes),
      incoming_(kFirstBufferBytes) {}

SealedStream::SealedStream(const StreamOptions& options, const KeyPair& ours)
    : options_(options),
      is_listener_(true),
      listener_(ours.public_key()),
      static_pair_(ours),
      cipher_(options.cipher),
      outgoing_(kFirstBufferBytes),
      incoming_(kFirstBufferBytes) {}

std::string SealedStream::seal_frame() const {
  const HeaderBytes header = encode({.type = FrameType::seal,
                                     .region = static_cast<uint32_t>(cipher_),
                                     .token = kHelloMagic,
                                     .length = kSealBytes,
                                     .value = kProtocolVersion});
  const PublicKey& key = fresh_pair_->public_key();
  return std::string(text_of(header)).append(reinterpret_cast<const char*>(key.data()), key.size());
}

void SealedStream::offer() {
  GRADRAIL_CHECK(!is_listener_ && !agreed());
  fresh_pair_ = KeyPair::generate();
  append(seal_frame());
}

absl::Status SealedStream::agree(const FrameHeader& frame, absl::Span<const std::byte> public_key) {
  GRADRAIL_CHECK(!agreed());
  if (frame.token != kHelloMagic || frame.length != kSealBytes || public_key.size() != kSealBytes)
    return absl::FailedPreconditionError("seal frame of another protocol");
  if (frame.value != kProtocolVersion) {
    return absl::FailedPreconditionError(fmt::format(
        "protocol version {}, this side has version {}: run the same gradrail on both", frame.value, kProtocolVersion));
  }
  // The connecting side chooses.
  const bool is_usable = is_listener_ ? is_known(frame.region) : frame.region == static_cast<uint32_t>(cipher_);
  if (!is_usable) return absl::FailedPreconditionError(fmt::format("unknown cipher {}", frame.region));
  cipher_ = static_cast<Cipher>(frame.region);
  // The listening side computes the key here: a connection that sends nothing costs no computation.
  if (is_listener_) fresh_pair_ = KeyPair::generate();
  GRADRAIL_CHECK(fresh_pair_.has_value());  // offer() precedes on the connecting side
  PublicKey theirs;
  std::copy(public_key.begin(), public_key.end(), theirs.begin());
  GRADRAIL_ASSIGN_OR_RETURN(const Key with_static,
                            is_listener_ ? static_pair_->agree(theirs) : fresh_pair_->agree(listener_));
  GRADRAIL_ASSIGN_OR_RETURN(const Key with_fresh, fresh_pair_->agree(theirs));
  const std::string their_frame = fmt::format(
      "{}{}", text_of(encode(frame)), std::string_view(reinterpret_cast<const char*>(theirs.data()), theirs.size()));
  const std::string our_frame = seal_frame();
  const std::string_view listener(reinterpret_cast<const char*>(listener_.data()), listener_.size());
  const std::string transcript = is_listener_ ? sha256({"gradrail sealed tcp 1", listener, their_frame, our_frame})
                                              : sha256({"gradrail sealed tcp 1", listener, our_frame, their_frame});
  const DirectionKeys keys = derive_directions(options_.shared_key, with_static, with_fresh, transcript);
  if (is_listener_) append(our_frame);
  sender_.emplace(cipher_, is_listener_ ? keys.from_listening : keys.from_connecting, options_.records_per_key);
  receiver_.emplace(cipher_, is_listener_ ? keys.from_connecting : keys.from_listening, options_.records_per_key);
  fresh_pair_.reset();
  return absl::OkStatus();
}

void SealedStream::append(std::string_view text) {
  GRADRAIL_CHECK(text.size() <= outgoing_.room());
  std::memcpy(&outgoing_.bytes[outgoing_.end], text.data(), text.size());
  outgoing_.end += text.size();
}

void SealedStream::seal_record(absl::Span<const iovec> pieces, size_t bytes) {
  GRADRAIL_CHECK(outgoing_.room() >= bytes + kRecordOverheadBytes);
  sender_->seal(pieces, bytes, &outgoing_.bytes[outgoing_.end]);
  outgoing_.end += bytes + kRecordOverheadBytes;
}

uint64_t SealedStream::seal(absl::Span<const iovec> pieces) {
  GRADRAIL_CHECK(agreed());
  uint64_t sealed = 0;
  size_t skip = 0;  // bytes of the first piece that are in the record before
  while (!pieces.empty() && outgoing_.room() >= kFirstRecordBytes + kRecordOverheadBytes) {
    const bool is_first = sender_->record_count() == 0;
    const size_t limit =
        std::min(outgoing_.room() - kRecordOverheadBytes, is_first ? kFirstRecordBytes : kMaxRecordBytes);
    std::array<iovec, kMaxPieces> parts;
    size_t count = 0;
    size_t bytes = 0;
    while (!pieces.empty() && bytes < limit && count < kMaxPieces) {
      const size_t part = std::min(pieces[0].iov_len - skip, limit - bytes);
      parts[count++] = {static_cast<std::byte*>(pieces[0].iov_base) + skip, part};
      bytes += part;
      skip += part;
      if (skip < pieces[0].iov_len) continue;
      skip = 0;
      pieces.remove_prefix(1);
    }
    seal_record({parts.data(), count}, bytes);
    sealed += bytes;
    if (is_first) outgoing_.grow(kBufferBytes);
  }
  return sealed;
}

ssize_t SealedStream::flush(int fd) {
  if (!has_unsent()) return 0;
  const ssize_t sent = send(fd, outgoing_.data(), outgoing_.used(), MSG_NOSIGNAL | MSG_DONTWAIT);
  if (sent > 0) outgoing_.begin += static_cast<size_t>(sent);
  if (!has_unsent()) outgoing_.begin = outgoing_.end = 0;
  return sent;
}

std::string SealedStream::final_bytes(std::string_view text) {
  std::string all(reinterpret_cast<const char*>(outgoing_.data()), outgoing_.used());
  outgoing_.begin = outgoing_.end = 0;
  if (!agreed()) return all.append(text);
  while (!text.empty()) {
    const iovec piece = {const_cast<char*>(text.data()), text.size()};
    text.remove_prefix(seal({&piece, 1}));
    all.append(reinterpret_cast<const char*>(outgoing_.data()), outgoing_.used());
    outgoing_.begin = outgoing_.end = 0;
  }
  return all;
}

ssize_t SealedStream::receive(int fd) {
  incoming_.compact();
  GRADRAIL_CHECK(incoming_.room() > 0);  // a complete record fits, and next() has taken those that are complete
  const size_t wanted = incoming_.room();
  const ssize_t got = recv(fd, &incoming_.bytes[incoming_.end], wanted, MSG_DONTWAIT);
  if (got <= 0) return got;
  drained_ = static_cast<size_t>(got) < wanted;
  incoming_.end += static_cast<size_t>(got);
  received_bytes_ += static_cast<uint64_t>(got);
  return got;
}

absl::StatusOr<absl::Span<const std::byte>> SealedStream::next() {
  GRADRAIL_CHECK(agreed());
  waits_for_rest_ = true;
  if (incoming_.used() < kRecordHeaderBytes) return absl::Span<const std::byte>();
  GRADRAIL_ASSIGN_OR_RETURN(const size_t length, receiver_->length_of(incoming_.data()));
  const bool is_first = !has_verified();
  if (is_first && length > kFirstRecordBytes) return absl::DataLossError("the first encrypted record is too long");
  if (incoming_.used() < length + kRecordOverheadBytes) return absl::Span<const std::byte>();
  waits_for_rest_ = false;
  GRADRAIL_RETURN_IF_ERROR(receiver_->open(incoming_.data(), length));
  if (is_first) incoming_.grow(kBufferBytes);
  const absl::Span<const std::byte> content(incoming_.data() + kRecordHeaderBytes, length);
  incoming_.begin += length + kRecordOverheadBytes;
  return content;
}

Duration SealedStream::stalled(TimePoint now, bool was_suspended) {
  const bool is_incomplete = has_received() && waits_for_rest_;
  if (!is_incomplete || was_suspended || received_bytes_ != looked_bytes_) {
    looked_bytes_ = received_bytes_;
    stalled_since_ = now;
  }
  return now - std::min(stalled_since_, now);
}

}  // namespace gradrail::transport::tcp::seal
