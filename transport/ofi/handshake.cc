#include "transport/ofi/handshake.h"

#include <algorithm>
#include <utility>

#include "fmt/format.h"
#include "transport/tcp/little_endian.h"

namespace gradrail::transport::ofi {
namespace {

enum class Type : uint8_t { hello = 1, request, grant, disconnect };

class Writer {
 public:
  explicit Writer(Type type) { number(static_cast<uint8_t>(type)); }
  template <typename T>
  Writer& number(T value) {
    std::byte bytes[sizeof(T)];
    tcp::store_le(bytes, value);
    out_.append(reinterpret_cast<const char*>(bytes), sizeof(T));
    return *this;
  }
  Writer& text(std::string_view value) {
    number(static_cast<uint16_t>(value.size()));
    out_.append(value);
    return *this;
  }
  std::string take() { return std::move(out_); }

 private:
  std::string out_;
};

/// Reads until something is missing; what is read after that is zero.
class Reader {
 public:
  explicit Reader(absl::Span<const std::byte> in) : in_(in) {}
  template <typename T>
  T number() {
    const std::byte* from = take(sizeof(T));
    return from == nullptr ? T{0} : tcp::load_le<T>(from);
  }
  std::string text(size_t limit) {
    const size_t bytes = number<uint16_t>();
    if (bytes > limit) ok_ = false;
    const std::byte* from = take(bytes);
    return from == nullptr ? "" : std::string(reinterpret_cast<const char*>(from), bytes);
  }
  bool ok() const { return ok_; }
  bool complete() const { return ok_ && in_.empty(); }

 private:
  const std::byte* take(size_t bytes) {
    ok_ = ok_ && bytes <= in_.size();
    if (!ok_) return nullptr;
    const std::byte* from = in_.data();
    in_.remove_prefix(bytes);
    return from;
  }
  absl::Span<const std::byte> in_;
  bool ok_ = true;
};

/// Text of a peer, made printable for terminals.
std::string printable(std::string text) {
  std::replace_if(
      text.begin(), text.end(), [](char c) { return c < ' ' || c > '~'; }, '?');
  return text;
}

absl::Status damaged() { return absl::DataLossError("not a message of the ofi transport"); }

absl::StatusOr<ControlMessage> decode_hello(Reader& in) {
  EndpointHello hello;
  const auto magic = in.number<uint64_t>();
  hello.version = in.number<uint32_t>();
  if (!in.ok() || magic != kHelloMagic) return damaged();
  if (hello.version != kProtocolVersion) {
    return absl::FailedPreconditionError(
        fmt::format("ofi: the peer speaks version {}, this is version {}: use the same release on both sides",
                    hello.version, kProtocolVersion));
  }
  hello.provider = in.text(64);
  hello.immediate_bits = in.number<uint8_t>();
  hello.message_bytes = in.number<uint32_t>();
  hello.receives = in.number<uint32_t>();
  hello.token = in.number<uint64_t>();
  hello.mailbox_key = in.number<uint64_t>();
  hello.mailbox_base = in.number<uint64_t>();
  hello.address = in.text(kMaxAddressBytes);
  if (!in.complete() || hello.receives == 0 || hello.address.empty()) return damaged();
  return hello;
}

absl::StatusOr<ControlMessage> decode_request(Reader& in) {
  const auto number = in.number<uint32_t>();
  const absl::StatusOr<RegionKey> key = RegionKey::parse(in.text(256));
  if (!in.complete() || !key.ok()) return damaged();
  return Request{number, *key};
}

absl::StatusOr<ControlMessage> decode_grant(Reader& in) {
  Grant grant;
  grant.number = in.number<uint32_t>();
  grant.key = in.number<uint64_t>();
  grant.base = in.number<uint64_t>();
  if (!in.complete()) return damaged();
  return grant;
}

absl::StatusOr<ControlMessage> decode_disconnect(Reader& in) {
  Disconnect disconnect{printable(in.text(kMaxReasonBytes))};
  if (!in.complete()) return damaged();
  return disconnect;
}

}  // namespace

std::string encode(const EndpointHello& hello) {
  return Writer(Type::hello)
      .number(kHelloMagic)
      .number(hello.version)
      .text(hello.provider)
      .number(hello.immediate_bits)
      .number(hello.message_bytes)
      .number(hello.receives)
      .number(hello.token)
      .number(hello.mailbox_key)
      .number(hello.mailbox_base)
      .text(hello.address)
      .take();
}

std::string encode(const Request& request) {
  return Writer(Type::request).number(request.number).text(request.key.encode()).take();
}

std::string encode(const Grant& grant) {
  return Writer(Type::grant).number(grant.number).number(grant.key).number(grant.base).take();
}

std::string encode(const Disconnect& disconnect) {
  return Writer(Type::disconnect).text(std::string_view(disconnect.reason).substr(0, kMaxReasonBytes)).take();
}

absl::StatusOr<ControlMessage> decode(absl::Span<const std::byte> message) {
  Reader in(message);
  switch (static_cast<Type>(in.number<uint8_t>())) {
    case Type::hello:
      return decode_hello(in);
    case Type::request:
      return decode_request(in);
    case Type::grant:
      return decode_grant(in);
    case Type::disconnect:
      return decode_disconnect(in);
  }
  return damaged();
}

absl::Status compare(const EndpointHello& ours, const EndpointHello& theirs) {
  if (ours.provider != theirs.provider) {
    return absl::FailedPreconditionError(
        fmt::format("ofi: one end uses the libfabric provider '{}', the other '{}': name one with --ofi-provider",
                    ours.provider, printable(theirs.provider)));
  }
  if (ours.immediate_bits != theirs.immediate_bits || ours.message_bytes != theirs.message_bytes) {
    return absl::FailedPreconditionError(fmt::format(
        "ofi: the ends differ in immediate bits ({}, {}) or message bytes ({}, {}): use the same releases of gradrail "
        "and libfabric",
        ours.immediate_bits, theirs.immediate_bits, ours.message_bytes, theirs.message_bytes));
  }
  return absl::OkStatus();
}

}  // namespace gradrail::transport::ofi
