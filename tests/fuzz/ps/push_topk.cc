// A push in topk that a worker has put into its slot.
#include <algorithm>
#include <bit>
#include <cstring>
#include <vector>

#include "base/check.h"
#include "ps/optimizer/isa.h"
#include "ps/optimizer/optimizer.h"
#include "ps/protocol/push_format.h"
#include "tests/fuzz/fuzz.h"

namespace gradrail::ps {
namespace {

/// One chunk, and the begin of another.
constexpr size_t kMostPushed = kTopkChunk + 200;
/// Behind a bucket: a write there is found without a sanitizer as well.
constexpr size_t kMoreElements = 64;
constexpr float kUntouched = 77.0f;

std::vector<float> means_of(Isa isa, PushFormat format, const std::vector<uint32_t>& push, size_t count) {
  std::vector<float> result(count + kMoreElements, kUntouched);
  const float* const gradients[] = {reinterpret_cast<const float*>(push.data())};
  apply_with(isa, {.kind = OptimizerKind::mean},
             {.count = count, .parameters = result.data(), .gradients = gradients, .format = format});
  for (size_t i = count; i < result.size(); ++i) GRADRAIL_CHECK(result[i] == kUntouched);
  result.resize(count);
  return result;
}

bool is_same(float a, float b) {
  return (a != a && b != b) || std::bit_cast<uint32_t>(a) == std::bit_cast<uint32_t>(b);
}

}  // namespace
}  // namespace gradrail::ps

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t bytes) {
  using namespace gradrail;
  using namespace gradrail::ps;
  if (bytes < 3) return 0;
  const size_t count = (data[0] + size_t{256} * data[1]) % kMostPushed + 1;
  const PushFormat format(PushFormat::topk, static_cast<uint16_t>(data[2] % kMaxThousandths + 1));
  std::vector<uint32_t> push(packed_bytes(count, format) / sizeof(uint32_t));
  std::memcpy(push.data(), data + 3, std::min(bytes - 3, push.size() * sizeof(uint32_t)));
  std::vector<float> sums(count);
  for (size_t first = 0, next = 0; first < count; first += kTopkChunk) {
    const size_t in_chunk = std::min(count - first, kTopkChunk);
    for (const size_t end = next + kept_in_chunk(in_chunk, format); next < end; ++next) {
      const size_t index = push[next] >> 16;
      if (index < in_chunk) sums[first + index] += std::bit_cast<float>(push[next] << 16);
    }
  }
  for (const Isa isa : supported_isas()) {
    const std::vector<float> means = means_of(isa, format, push, count);
    for (size_t i = 0; i < count; ++i) GRADRAIL_CHECK(is_same(means[i], sums[i]));
    // A worker that pushes the sums again selects some of them. No other element changes.
    std::vector<float> rest(count);
    std::vector<uint32_t> again(push.size());
    pack_with(isa, format, sums, rest.data(), again.data());
    const std::vector<float> sent = means_of(isa, format, again, count);
    for (size_t i = 0; i < count; ++i)
      GRADRAIL_CHECK(is_same(rest[i], sums[i]) || rest[i] == 0.0f || sent[i] + rest[i] == sums[i]);
  }
  return 0;
}
