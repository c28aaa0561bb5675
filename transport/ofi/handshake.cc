#include "transport/ofi/handshake.h"

#include <string_view>
#include <utility>

#include "fmt/format.h"
#include "transport/common/byte_codec.h"

namespace gradrail::transport::ofi {
namespace {

enum class Type : uint8_t { hello = 1, request, grant, disconnect, probe, reply };

using common::ByteReader;
using common::ByteWriter;

ByteWriter writer_of(Type type) { return std::move(ByteWriter().number(static_cast<uint8_t>(type))); }

absl::Status damaged() { return absl::DataLossError("not a message of the ofi transport"); }

absl::StatusOr<ControlMessage> decode_hello(ByteReader& in) {
  EndpointHello hello;
  const auto magic = in.number<uint64_t>();
  hello.version = in.number<uint32_t>();
  if (!in.ok() || magic != kHelloMagic) return damaged();
  // Checked before the other fields, because their layout belongs to the version.
  if (hello.version != kProtocolVersion) {
    return absl::FailedPreconditionError(fmt::format(
        "ofi: the peer has protocol version {}, this side has version {}: use the same release on both sides",
        hello.version, kProtocolVersion));
  }
  hello.provider = std::string(in.text(64));
  hello.immediate_bits = in.number<uint8_t>();
  hello.message_bytes = in.number<uint32_t>();
  hello.receives = in.number<uint32_t>();
  hello.token = in.number<uint64_t>();
  hello.mailbox_key = in.number<uint64_t>();
  hello.mailbox_base = in.number<uint64_t>();
  hello.address = std::string(in.text(kMaxAddressBytes));
  // The peer could never get a message without receive buffers.
  if (!in.complete() || hello.receives == 0 || hello.address.empty()) return damaged();
  return hello;
}

absl::StatusOr<ControlMessage> decode_request(ByteReader& in) {
  const auto number = in.number<uint32_t>();
  const absl::StatusOr<RegionKey> key = RegionKey::parse(in.text(256));
  if (!in.complete() || !key.ok()) return damaged();
  return Request{number, *key};
}

absl::StatusOr<ControlMessage> decode_grant(ByteReader& in) {
  Grant grant;
  grant.number = in.number<uint32_t>();
  grant.key = in.number<uint64_t>();
  grant.base = in.number<uint64_t>();
  if (!in.complete()) return damaged();
  return grant;
}

absl::StatusOr<ControlMessage> decode_disconnect(ByteReader& in) {
  Disconnect disconnect{common::printable(in.text(kMaxReasonBytes))};
  if (!in.complete()) return damaged();
  return disconnect;
}

template <typename Message>
absl::StatusOr<ControlMessage> decode_number(ByteReader& in) {
  const Message message{in.number<uint32_t>()};
  if (!in.complete()) return damaged();
  return message;
}

}  // namespace

std::string encode(const EndpointHello& hello) {
  return writer_of(Type::hello)
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
  return writer_of(Type::request).number(request.number).text(request.key.encode()).take();
}

std::string encode(const Grant& grant) {
  return writer_of(Type::grant).number(grant.number).number(grant.key).number(grant.base).take();
}

std::string encode(const Disconnect& disconnect) {
  return writer_of(Type::disconnect).text(std::string_view(disconnect.reason).substr(0, kMaxReasonBytes)).take();
}

std::string encode(const Probe& probe) { return writer_of(Type::probe).number(probe.number).take(); }

std::string encode(const Reply& reply) { return writer_of(Type::reply).number(reply.number).take(); }

absl::StatusOr<ControlMessage> decode(absl::Span<const std::byte> message) {
  ByteReader in(common::as_text(message));
  switch (static_cast<Type>(in.number<uint8_t>())) {
    case Type::hello:
      return decode_hello(in);
    case Type::request:
      return decode_request(in);
    case Type::grant:
      return decode_grant(in);
    case Type::disconnect:
      return decode_disconnect(in);
    case Type::probe:
      return decode_number<Probe>(in);
    case Type::reply:
      return decode_number<Reply>(in);
  }
  return damaged();
}

absl::Status compare(const EndpointHello& ours, const EndpointHello& theirs) {
  if (ours.provider != theirs.provider) {
    return absl::FailedPreconditionError(
        fmt::format("ofi: one end uses the libfabric provider '{}', the other '{}': name one with --ofi-provider",
                    ours.provider, common::printable(theirs.provider)));
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
