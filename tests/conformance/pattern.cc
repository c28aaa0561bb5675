#include "conformance/pattern.h"

#include <algorithm>
#include <cstring>

namespace gradrail::conformance {
namespace {

uint64_t word_at(uint64_t seed, uint64_t index) {
  uint64_t word = (index + 1) * 0x9e3779b97f4a7c15ull + seed * 0xbf58476d1ce4e5b9ull;
  word ^= word >> 29;
  return word * 0x94d049bb133111ebull;
}

}  // namespace

void fill_pattern(absl::Span<std::byte> bytes, uint64_t seed) {
  for (size_t i = 0; i < bytes.size(); i += sizeof(uint64_t)) {
    const uint64_t word = word_at(seed, i / sizeof(uint64_t));
    std::memcpy(bytes.data() + i, &word, std::min(sizeof(word), bytes.size() - i));
  }
}

size_t first_difference(absl::Span<const std::byte> bytes, uint64_t seed) {
  for (size_t i = 0; i < bytes.size(); i += sizeof(uint64_t)) {
    const uint64_t word = word_at(seed, i / sizeof(uint64_t));
    const size_t length = std::min(sizeof(word), bytes.size() - i);
    if (std::memcmp(bytes.data() + i, &word, length) == 0) continue;
    size_t at = 0;
    while (std::memcmp(bytes.data() + i + at, reinterpret_cast<const char*>(&word) + at, 1) == 0) ++at;
    return i + at;
  }
  return bytes.size();
}

bool all_equal(absl::Span<const std::byte> bytes, std::byte value) {
  return std::all_of(bytes.begin(), bytes.end(), [&](std::byte b) { return b == value; });
}

}  // namespace gradrail::conformance
