#include "worker/client/paths/return_decoder.h"

#include <cstring>
#include <limits>

#include "base/check.h"
#include "base/crc32c.h"
#include "base/status.h"
#include "fmt/format.h"
#include "ps/optimizer/returns.h"
#include "ps/protocol/return_format.h"

namespace gradrail::worker {
namespace {

/// The answer that a delta with this number changes.
uint16_t before(uint16_t answer) {
  return answer == 1 ? std::numeric_limits<uint16_t>::max() : static_cast<uint16_t>(answer - 1);
}

}  // namespace

absl::Status ReturnDecoder::allocate(ReturnFormat format, uint64_t elements, const MemoryBinder& place) {
  if (format != ReturnFormat::delta) return absl::OkStatus();
  GRADRAIL_ASSIGN_OR_RETURN(held_, SharedMemory::create("gradrail-held", elements * sizeof(uint16_t)));
  if (place) place(held_.span());
  return absl::OkStatus();
}

absl::Status ReturnDecoder::unpack(const ps::ReturnHeader& header, uint32_t base, const std::byte* packed,
                                   ps::ElementRange range, absl::Span<float> parameters) {
  GRADRAIL_CHECK(parameters.size() == range.count);
  const uint64_t whole = ps::whole_return_bytes(range.count);
  const bool has_delta = held_.data() != nullptr;
  const bool is_delta = header.payload_bytes < whole;
  if (header.payload_bytes > whole || (is_delta && !has_delta))
    return absl::DataLossError(fmt::format("have {} bytes, not {}", header.payload_bytes, whole));
  if (header.has_crc != 0 && crc32c(packed, header.payload_bytes) != header.crc32c)
    return absl::DataLossError("do not match their CRC32C");
  if (is_delta && (base == 0 || header.answer == 0 || base != before(header.answer)))
    return absl::DataLossError(
        fmt::format("are a delta to answer {}; the receiver has answer {}", before(header.answer), base));
  if (!has_delta) {
    ps::widen_bf16(reinterpret_cast<const uint16_t*>(packed), parameters);
    return absl::OkStatus();
  }
  uint16_t* const held = reinterpret_cast<uint16_t*>(held_.data()) + range.first;
  if (is_delta) {
    ps::unpack_delta(packed, held, parameters);
  } else {
    std::memcpy(held, packed, whole);
    ps::widen_bf16(held, parameters);
  }
  return absl::OkStatus();
}

}  // namespace gradrail::worker
