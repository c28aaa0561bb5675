#include <algorithm>
#include <cstring>

#include "base/check.h"
#include "base/status.h"
#include "tests/fuzz/fuzz.h"
#include "transport/shm/ring.h"
#include "transport/shm/wire.h"

namespace gradrail::transport::shm {
namespace {

void try_key(std::string_view bytes) {
  const std::optional<RegionKey> key = decode_key(bytes);
  if (!key) return;
  GRADRAIL_CHECK(encode(*key) == bytes);
  GRADRAIL_CHECK(key->access <= static_cast<uint8_t>(Access::remote_read_write));
}

void try_message(const ControlMessage& message, size_t descriptor_count) {
  const absl::Status hello = check_hello(message, descriptor_count);
  if (hello.ok()) {
    const ControlMessage ours = make_hello();
    GRADRAIL_CHECK(message.magic == ours.magic && message.version == ours.version && message.kind == ours.kind);
    GRADRAIL_CHECK(message.key.bytes == ours.key.bytes && descriptor_count == kMaxDescriptors);
  } else {
    GRADRAIL_CHECK(absl::IsInvalidArgument(hello) && fuzz::is_printable(message_of(hello)));
  }
  const absl::Status reason = reason_of(message);
  GRADRAIL_CHECK(!reason.ok() && reason.message().size() <= sizeof(message.text));
  GRADRAIL_CHECK(fuzz::is_printable(message_of(reason)));
  // The next peer loses nothing but the last character of a text that fills its field.
  const absl::Status again = reason_of(make_disconnect(reason));
  GRADRAIL_CHECK(again.code() == reason.code());
  GRADRAIL_CHECK(message_of(again) == message_of(reason).substr(0, sizeof(message.text) - 1));
}

}  // namespace
}  // namespace gradrail::transport::shm

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t bytes) {
  using namespace gradrail::transport::shm;
  const std::string_view text = gradrail::fuzz::text_of(data, bytes);
  ControlMessage message;
  std::memset(static_cast<void*>(&message), 0, sizeof(message));
  if (bytes > 0) std::memcpy(static_cast<void*>(&message), data, std::min(bytes, sizeof(message)));
  const size_t descriptors = bytes == 0 ? 0 : data[bytes - 1] % 4;
  try_message(message, descriptors);
  message.magic = kMagic;
  message.version = kVersion;
  try_message(message, descriptors);
  try_key(text);
  try_key(text.substr(0, sizeof(RegionKey)));
  if (bytes > 8) try_key(text.substr(8, sizeof(RegionKey)));
  return 0;
}
