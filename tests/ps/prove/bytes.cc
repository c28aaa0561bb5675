#include "tests/ps/prove/bytes.h"

#include <cstring>

namespace gradrail::ps::prove {
namespace {

/// Source  Vigna, splitmix64.
uint64_t mix(uint64_t value) {
  value ^= value >> 30;
  value *= 0xbf58476d1ce4e5b9;
  value ^= value >> 27;
  value *= 0x94d049bb133111eb;
  return value ^ (value >> 31);
}

}  // namespace

Fingerprint fingerprint_of(const Bytes& bytes) {
  const std::string& text = bytes.text();
  Fingerprint result{.low = text.size(), .high = ~uint64_t{0}};
  for (size_t at = 0; at < text.size(); at += sizeof(uint64_t)) {
    uint64_t word = 0;
    std::memcpy(&word, text.data() + at, std::min(sizeof(word), text.size() - at));
    result.low = mix(result.low ^ word) + 0x9e3779b97f4a7c15;
    result.high = mix(result.high + word) ^ 0xd1b54a32d192ed03;
  }
  return result;
}

}  // namespace gradrail::ps::prove
