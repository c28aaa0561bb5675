// A delta that a shard has put into the return region of a worker.
#include <algorithm>
#include <bit>
#include <cstring>
#include <vector>

#include "base/check.h"
#include "ps/optimizer/returns.h"
#include "ps/protocol/return_format.h"
#include "tests/fuzz/fuzz.h"

namespace gradrail::ps {
namespace {

constexpr size_t kMostElements = 200;
constexpr uint16_t kHeld = 0x3f80;

bool is_marked(const std::vector<std::byte>& packed, size_t element) {
  return (packed[element / 8] & std::byte(1 << element % 8)) != std::byte{};
}

/// The elements after the delta, with one instruction set. The memory ends with the bucket: the sanitizer finds a
/// write behind it.
std::vector<uint16_t> unpacked(Isa isa, const std::vector<std::byte>& packed, size_t count) {
  std::vector<uint16_t> held(count, kHeld);
  std::vector<float> values(count);
  unpack_delta_with(isa, packed.data(), held.data(), absl::MakeSpan(values));
  for (size_t i = 0; i < count; ++i) {
    GRADRAIL_CHECK(std::bit_cast<uint32_t>(values[i]) == uint32_t{held[i]} << 16);
    GRADRAIL_CHECK(is_marked(packed, i) || held[i] == kHeld);
  }
  return held;
}

}  // namespace
}  // namespace gradrail::ps

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t bytes) {
  using namespace gradrail;
  using namespace gradrail::ps;
  const size_t count = bytes > 0 ? data[0] % kMostElements + 1 : 1;
  // As much as a bucket has in the return region, and what may be read behind it.
  std::vector<std::byte> packed(return_payload_at(0, 1, count) + kMaskBlock);
  if (bytes > 1) std::memcpy(packed.data(), data + 1, std::min(bytes - 1, packed.size()));
  const std::vector<uint16_t> held = unpacked(supported_isas().front(), packed, count);
  for (const Isa isa : supported_isas()) {
    GRADRAIL_CHECK(unpacked(isa, packed, count) == held);
    // A shard that makes the same change packs a delta with the same result. A NaN is another one.
    std::vector<float> values(count);
    widen_bf16_with(isa, held.data(), absl::MakeSpan(values));
    std::vector<uint16_t> of_shard(count, kHeld);
    std::vector<std::byte> again(packed.size());
    std::vector<uint16_t> stamps(count);
    stamp_changes_with(isa, values, 1, of_shard.data(), stamps.data());
    const bool is_shorter = pack_delta_with(isa, of_shard, stamps.data(), 0, again.data()) > 0;
    if (is_shorter) GRADRAIL_CHECK(unpacked(isa, again, count) == of_shard);
    for (size_t i = 0; i < count; ++i) GRADRAIL_CHECK(of_shard[i] == held[i] || values[i] != values[i]);
  }
  return 0;
}
