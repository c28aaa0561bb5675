#include "transport/ucx/wire.h"

#include "base/little_endian.h"
#include "fmt/format.h"

namespace gradrail::transport::ucx {

namespace {
constexpr uint8_t kNotify = 1;
constexpr uint8_t kRendezvous = 2;
}  // namespace

HeaderBytes encode(const Header& header) {
  HeaderBytes bytes{};
  bytes[0] = static_cast<std::byte>(header.kind);
  bytes[1] = static_cast<std::byte>((header.notify ? kNotify : 0) | (header.wants_rendezvous ? kRendezvous : 0));
  store_le(&bytes[4], header.connection);
  store_le(&bytes[8], header.token);
  store_le(&bytes[16], header.sequence);
  store_le(&bytes[20], header.region);
  store_le(&bytes[24], header.region_token);
  store_le(&bytes[32], header.offset);
  store_le(&bytes[40], header.value);
  store_le(&bytes[48], header.length);
  return bytes;
}

absl::StatusOr<Header> decode(absl::Span<const std::byte> bytes) {
  if (bytes.size() < kHeaderBytes) return absl::DataLossError(fmt::format("header of {} bytes", bytes.size()));
  const auto kind = static_cast<uint8_t>(bytes[0]);
  const auto flags = static_cast<uint8_t>(bytes[1]);
  if (kind < static_cast<uint8_t>(MessageKind::put) || kind > static_cast<uint8_t>(MessageKind::hello)) {
    return absl::DataLossError(fmt::format("message of unknown kind {}", kind));
  }
  Header header{
      .kind = static_cast<MessageKind>(kind), .notify = flags == kNotify, .wants_rendezvous = flags == kRendezvous};
  // Each flag belongs to one kind. A flag of a later version must not be ignored.
  const uint8_t may = header.kind == MessageKind::put           ? kNotify
                      : header.kind == MessageKind::get_request ? kRendezvous
                                                                : 0;
  if ((flags != 0 && flags != may) || bytes[2] != std::byte{0} || bytes[3] != std::byte{0}) {
    return absl::DataLossError(fmt::format("{} with unknown flags", kind_name(header.kind)));
  }
  if (bytes.size() != header.bytes()) {
    return absl::DataLossError(fmt::format("{} with a header of {} bytes", kind_name(header.kind), bytes.size()));
  }
  header.connection = load_le<uint32_t>(&bytes[4]);
  header.token = load_le<uint64_t>(&bytes[8]);
  header.sequence = load_le<uint32_t>(&bytes[16]);
  header.region = load_le<uint32_t>(&bytes[20]);
  header.region_token = load_le<uint64_t>(&bytes[24]);
  header.offset = load_le<uint64_t>(&bytes[32]);
  header.value = load_le<uint64_t>(&bytes[40]);
  if (header.kind == MessageKind::get_request) header.length = load_le<uint64_t>(&bytes[48]);
  return header;
}

std::string_view kind_name(MessageKind kind) {
  switch (kind) {
    case MessageKind::put:
      return "put";
    case MessageKind::message:
      return "message";
    case MessageKind::get_request:
      return "get";
    case MessageKind::get_data:
      return "answer to a get";
    case MessageKind::hello:
      return "hello";
  }
  return "?";
}

}  // namespace gradrail::transport::ucx
