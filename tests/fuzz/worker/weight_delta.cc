#include <algorithm>
#include <vector>

#include "base/check.h"
#include "tests/fuzz/fuzz.h"
#include "worker/publish/delta.h"

namespace gradrail::publish {
namespace {

constexpr size_t kMostElements = 256;

/// [format][elements][a chunk of a delta]. An accepted chunk gives bits that another delta restores.
void try_delta(Format format, size_t elements, absl::Span<const std::byte> delta) {
  const std::vector<std::byte> before(elements * element_bytes(format), std::byte{0x3f});
  std::vector<std::byte> bits = before;
  const size_t bytes = delta.size();
  bool changed = false;
  const absl::Status status = apply_delta(format, delta, absl::MakeSpan(bits), changed);
  GRADRAIL_CHECK(delta.size() <= bytes);
  if (!status.ok()) return fuzz::check_refusal(status, absl::StatusCode::kDataLoss, "delta");
  GRADRAIL_CHECK(changed || bits == before);
  std::vector<std::byte> again;
  append_delta(format, before, bits, again);
  GRADRAIL_CHECK(again.size() <= bits.size() + kChunkHeaderBytes);
  std::vector<std::byte> restored = before;
  absl::Span<const std::byte> rest(again);
  GRADRAIL_CHECK(apply_delta(format, rest, absl::MakeSpan(restored), changed).ok());
  GRADRAIL_CHECK(restored == bits && rest.empty());
}

}  // namespace
}  // namespace gradrail::publish

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t bytes) {
  using namespace gradrail::publish;
  if (bytes < 2) return 0;
  const Format format = data[0] % 2 == 0 ? Format::bf16 : Format::fp32;
  // In memory of its exact size: the sanitizer sees each access beyond the end.
  const auto all = gradrail::fuzz::bytes_of(gradrail::fuzz::text_of(data + 2, bytes - 2));
  const std::vector<std::byte> delta(all.begin(), all.end());
  try_delta(format, std::min<size_t>(size_t{data[1]} + 1, kMostElements), delta);
  return 0;
}
