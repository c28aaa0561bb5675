#include <string>
#include <vector>

#include "base/check.h"
#include "base/crc32c.h"
#include "base/little_endian.h"
#include "base/status.h"
#include "tests/fuzz/fuzz.h"
#include "transport/ucx/handshake.h"
#include "transport/ucx/wire.h"

namespace gradrail::transport::ucx {
namespace {

constexpr size_t kCrcAt = 24;
constexpr uint16_t kMajor = 1, kMinor = 13;

void try_header(absl::Span<const std::byte> bytes) {
  const absl::StatusOr<Header> header = decode(bytes);
  if (!header.ok()) {
    GRADRAIL_CHECK(absl::IsDataLoss(header.status()) && fuzz::is_printable(message_of(header.status())));
    return;
  }
  GRADRAIL_CHECK(header->bytes() == bytes.size() && kind_name(header->kind) != "?");
  GRADRAIL_CHECK(absl::MakeConstSpan(encode(*header)).first(bytes.size()) == bytes);
}

void try_frame(std::string_view bytes) {
  const absl::StatusOr<Frame> frame = parse_frame(bytes);
  if (!frame.ok()) {
    GRADRAIL_CHECK(!frame.status().message().empty() && fuzz::is_printable(message_of(frame.status())));
    return;
  }
  std::string again = frames_of(frame->kind, frame->text, bytes.size() + 1).at(0);
  again[7] = frame->more ? 1 : 0;
  GRADRAIL_CHECK(again == bytes);
}

void try_handshake(std::string_view text) {
  const absl::StatusOr<Handshake> handshake = parse_handshake(text, kMajor, kMinor);
  if (!handshake.ok()) {
    GRADRAIL_CHECK(!handshake.status().message().empty() && fuzz::is_printable(message_of(handshake.status())));
    return;
  }
  GRADRAIL_CHECK(!handshake->worker_address.empty());
  GRADRAIL_CHECK(handshake->ucx_major == kMajor && handshake->ucx_minor == kMinor);
  GRADRAIL_CHECK(encode(*handshake) == text);
}

/// Any text arrives whole, however small the frames are.
void try_split(std::string_view text, size_t max_frame_bytes) {
  std::string whole;
  const std::vector<std::string> frames = frames_of(FrameKind::handshake, text, max_frame_bytes);
  for (const std::string& bytes : frames) {
    const absl::StatusOr<Frame> frame = parse_frame(bytes);
    GRADRAIL_CHECK(frame.ok() && bytes.size() <= max_frame_bytes);
    GRADRAIL_CHECK(frame->more == (&bytes != &frames.back()));
    whole += frame->text;
  }
  GRADRAIL_CHECK(whole == text);
}

std::string with_crc(std::string_view text) {
  std::string repaired(text);
  if (text.size() < kCrcAt + 4) return repaired;
  const uint32_t crc = crc32c(text.data() + kCrcAt + 4, text.size() - kCrcAt - 4, crc32c(text.data(), kCrcAt));
  store_le(reinterpret_cast<std::byte*>(repaired.data()) + kCrcAt, crc);
  return repaired;
}

}  // namespace
}  // namespace gradrail::transport::ucx

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t bytes) {
  using namespace gradrail::transport::ucx;
  const std::string_view text = gradrail::fuzz::text_of(data, bytes);
  try_header(gradrail::fuzz::bytes_of(text));
  try_frame(text);
  try_handshake(text);
  try_handshake(with_crc(text));
  if (bytes > 0) try_split(text.substr(1), 9 + data[0]);
  return 0;
}
