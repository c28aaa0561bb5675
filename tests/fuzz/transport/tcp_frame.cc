#include "transport/tcp/frame.h"

#include <algorithm>
#include <cstring>

#include "base/check.h"
#include "base/crc32c.h"
#include "base/little_endian.h"
#include "tests/fuzz/fuzz.h"

namespace gradrail::transport::tcp {
namespace {

void try_header(const HeaderBytes& bytes) {
  const absl::StatusOr<FrameHeader> header = decode(bytes);
  if (!header.ok()) return fuzz::check_refusal(header.status(), absl::StatusCode::kDataLoss, "frame");
  GRADRAIL_CHECK(encode(*header) == bytes);
  GRADRAIL_CHECK(starts_frame(bytes));
  GRADRAIL_CHECK(frame_name(header->type) != "unknown");
  GRADRAIL_CHECK(header->payload_bytes() <= kMaxFramePayloadBytes);
  GRADRAIL_CHECK(!header->notify || header->type == FrameType::put);
  if (header->type == FrameType::message) GRADRAIL_CHECK(header->length <= kMaxMessageBytes);
  if (header->type == FrameType::refusal) GRADRAIL_CHECK(header->length <= kMaxRefusalBytes);
  if (header->type == FrameType::hello) GRADRAIL_CHECK(header->length == 0);
}

/// Corrects magic and checksum, for the checks behind them.
void repair(HeaderBytes& bytes) {
  store_le(&bytes[0], uint16_t{0x5267});
  store_le(&bytes[4], crc32c(bytes.data() + 8, kHeaderBytes - 8, crc32c(bytes.data(), 4)));
}

void try_refusal(std::string_view reason) {
  const std::string frame = refusal_frame(reason);
  HeaderBytes bytes;
  GRADRAIL_CHECK(frame.size() >= bytes.size());
  std::memcpy(bytes.data(), frame.data(), bytes.size());
  const absl::StatusOr<FrameHeader> header = decode(bytes);
  GRADRAIL_CHECK(header.ok() && header->type == FrameType::refusal);
  GRADRAIL_CHECK(frame.substr(bytes.size()) == reason.substr(0, header->length));
  GRADRAIL_CHECK(header->length == std::min<size_t>(reason.size(), kMaxRefusalBytes));
}

}  // namespace
}  // namespace gradrail::transport::tcp

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t bytes) {
  using namespace gradrail::transport::tcp;
  HeaderBytes header{};
  if (bytes > 0) std::memcpy(header.data(), data, std::min(bytes, header.size()));
  try_header(header);
  repair(header);
  try_header(header);
  if (bytes > header.size()) try_refusal(gradrail::fuzz::text_of(data, bytes).substr(header.size()));
  return 0;
}
