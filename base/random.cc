#include "base/random.h"

#include <sys/random.h>

#include <bit>
#include <cerrno>
#include <cmath>
#include <cstring>

#include "base/check.h"
#include "base/random_bits.h"

namespace gradrail {
namespace {

uint64_t splitmix(uint64_t& state) {
  uint64_t z = (state += 0x9e3779b97f4a7c15ull);
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
  return z ^ (z >> 31);
}

}  // namespace

Random::Random(uint64_t seed, uint64_t stream) {
  // The stream is mixed first: a plain XOR would give (seed 1, stream 2) and (seed 2, stream 1) the same numbers.
  uint64_t mixed_stream = stream;
  uint64_t state = seed ^ splitmix(mixed_stream);
  for (uint64_t& word : state_) word = splitmix(state);
}

uint64_t Random::next() {
  const uint64_t result = std::rotl(state_[1] * 5, 7) * 9;
  const uint64_t t = state_[1] << 17;
  state_[2] ^= state_[0];
  state_[3] ^= state_[1];
  state_[1] ^= state_[2];
  state_[0] ^= state_[3];
  state_[2] ^= t;
  state_[3] = std::rotl(state_[3], 45);
  return result;
}

uint64_t Random::below(uint64_t bound) {
  // Lemire's multiply-shift with rejection of the short first interval.
  while (true) {
    const auto product = static_cast<unsigned __int128>(next()) * bound;
    const auto low = static_cast<uint64_t>(product);
    if (low >= bound || low >= -bound % bound) return static_cast<uint64_t>(product >> 64);
  }
}

// 53 bits fill the mantissa of a double, so that no rounding can reach 1.
double Random::uniform() { return static_cast<double>(next() >> 11) * 0x1.0p-53; }

double Random::normal() {
  if (has_spare_) {
    has_spare_ = false;
    return spare_normal_;
  }
  while (true) {
    const double u = 2.0 * uniform() - 1.0;
    const double v = 2.0 * uniform() - 1.0;
    const double s = u * u + v * v;
    // The point must be inside the unit circle, and log(0) has no value. Each accepted point gives two numbers.
    if (s >= 1.0 || s == 0.0) continue;
    const double factor = std::sqrt(-2.0 * std::log(s) / s);
    spare_normal_ = v * factor;
    has_spare_ = true;
    return u * factor;
  }
}

std::string random_bytes(size_t count) {
  std::string bytes(count, '\0');
  for (size_t done = 0; done < count;) {
    // Flags 0: the call blocks until the kernel's generator has its first entropy.
    const ssize_t got = getrandom(bytes.data() + done, count - done, 0);
    GRADRAIL_CHECK(got > 0 || (got < 0 && errno == EINTR));  // more than 256 bytes may arrive in pieces
    if (got > 0) done += static_cast<size_t>(got);
  }
  return bytes;
}

uint64_t random_bits() {
  uint64_t bits = 0;
  std::memcpy(&bits, random_bytes(sizeof(bits)).data(), sizeof(bits));
  return bits;
}

}  // namespace gradrail
