#include <string>
#include <variant>

#include "base/check.h"
#include "base/crc32c.h"
#include "base/little_endian.h"
#include "base/status.h"
#include "tests/fuzz/fuzz.h"
#include "transport/ofi/handshake.h"

namespace gradrail::transport::ofi {
namespace {

constexpr size_t kKeyAt = 7;  // in a request: type, number and length stand before it

void check_hello(const EndpointHello& hello) {
  GRADRAIL_CHECK(hello.version == kProtocolVersion && hello.receives > 0);
  GRADRAIL_CHECK(!hello.address.empty() && hello.address.size() <= kMaxAddressBytes);
  GRADRAIL_CHECK(compare(hello, hello).ok());
  const EndpointHello ours = {.provider = "verbs", .immediate_bits = 32, .message_bytes = 4096};
  const absl::Status compared = compare(ours, hello);
  GRADRAIL_CHECK(compared.ok() || fuzz::is_printable(message_of(compared)));
}

void try_message(std::string_view bytes) {
  const absl::StatusOr<ControlMessage> message = decode(fuzz::bytes_of(bytes));
  if (!message.ok()) {
    const bool other_version = absl::IsFailedPrecondition(message.status());
    return fuzz::check_refusal(
        message.status(), other_version ? absl::StatusCode::kFailedPrecondition : absl::StatusCode::kDataLoss, "ofi");
  }
  if (const auto* hello = std::get_if<EndpointHello>(&*message)) check_hello(*hello);
  if (const auto* disconnect = std::get_if<Disconnect>(&*message)) {
    GRADRAIL_CHECK(disconnect->reason.size() <= kMaxReasonBytes && fuzz::is_printable(disconnect->reason));
  }
  const std::string again = std::visit([](const auto& each) { return encode(each); }, *message);
  // The reason of a disconnect is made printable.
  GRADRAIL_CHECK(again == bytes || (std::holds_alternative<Disconnect>(*message) && again.size() == bytes.size()));
}

}  // namespace
}  // namespace gradrail::transport::ofi

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t bytes) {
  using namespace gradrail::transport::ofi;
  const std::string_view text = gradrail::fuzz::text_of(data, bytes);
  try_message(text);
  if (bytes < kKeyAt + 4) return 0;
  // The checksum of the region key in a request.
  std::string repaired(text);
  const uint32_t crc = gradrail::crc32c(repaired.data() + kKeyAt, bytes - kKeyAt - 4);
  gradrail::store_le(reinterpret_cast<std::byte*>(repaired.data()) + bytes - 4, crc);
  try_message(repaired);
  return 0;
}
