#include "ps/protocol/path_check.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "base/random.h"
#include "fmt/format.h"

namespace gradrail::ps {

void fill_check(absl::Span<std::byte> target, uint64_t seed) {
  Random random(seed);
  // The loop copies eight bytes at a time; min() keeps a target of another length from an overflow.
  for (size_t i = 0; i < target.size(); i += sizeof(uint64_t)) {
    const uint64_t word = random.next();
    std::memcpy(target.data() + i, &word, std::min(sizeof(word), target.size() - i));
  }
}

std::string compare_check(absl::Span<const std::byte> arrived, uint64_t seed) {
  // Computed again, not stored: 16 KiB take microseconds, and a connection has one check.
  std::vector<std::byte> expected(arrived.size());
  fill_check(absl::MakeSpan(expected), seed);
  const auto [first, unused] = std::mismatch(arrived.begin(), arrived.end(), expected.begin());
  if (first == arrived.end()) return "";
  return fmt::format("the checked transfer arrived damaged: byte {} of {} differs", first - arrived.begin(),
                     arrived.size());
}

}  // namespace gradrail::ps
