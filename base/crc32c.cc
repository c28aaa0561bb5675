#include "base/crc32c.h"

#include <array>
#include <bit>
#include <cstring>

#include "base/check.h"

#if defined(__x86_64__)
#include <nmmintrin.h>
#endif

namespace gradrail {
namespace {

static_assert(std::endian::native == std::endian::little, "words are loaded as they lie in memory");

constexpr uint32_t kPolynomial = 0x82f63b78u;  // bit-reversed 0x1edc6f41

using Table = std::array<uint32_t, 256>;

constexpr uint32_t divide_byte(uint32_t rest) {
  for (int bit = 0; bit < 8; ++bit) rest = (rest >> 1) ^ (kPolynomial & (0u - (rest & 1)));
  return rest;
}

// kSlices[k][b]: what byte b contributes when k bytes follow it in its word.
constexpr std::array<Table, 8> make_slices() {
  std::array<Table, 8> slices{};
  for (uint32_t b = 0; b < 256; ++b) slices[0][b] = divide_byte(b);
  for (size_t k = 1; k < 8; ++k) {
    for (size_t b = 0; b < 256; ++b) {
      const uint32_t previous = slices[k - 1][b];
      slices[k][b] = slices[0][previous & 255] ^ (previous >> 8);
    }
  }
  return slices;
}
constexpr std::array<Table, 8> kSlices = make_slices();

uint64_t load_word(const unsigned char* p) {
  uint64_t word;
  std::memcpy(&word, p, sizeof(word));
  return word;
}

uint32_t add_byte(uint32_t rest, unsigned char byte) { return kSlices[0][(rest ^ byte) & 255] ^ (rest >> 8); }

uint32_t add_word(uint32_t rest, uint64_t word) {
  // Slicing by 8: the eight look-ups are independent of each other, unlike those of a loop over bytes.
  word ^= rest;
  uint32_t sum = 0;
  for (size_t k = 0; k < 8; ++k) sum ^= kSlices[7 - k][(word >> (8 * k)) & 255];
  return sum;
}

}  // namespace

// The sum starts from all ones and ends inverted (RFC 3720). Inverting an earlier result therefore continues it.
uint32_t crc32c_portable(const void* data, size_t bytes, uint32_t crc) {
  const auto* p = static_cast<const unsigned char*>(data);
  uint32_t rest = ~crc;
  for (; bytes >= 8; bytes -= 8, p += 8) rest = add_word(rest, load_word(p));
  for (; bytes > 0; --bytes) rest = add_byte(rest, *p++);
  return ~rest;
}

#if defined(__x86_64__)
namespace {

// The crc32 instruction takes 3 cycles but one can start every cycle: three runs side by side, joined afterwards.
// Long runs amortise the joining, short ones catch what is too small for them.
constexpr size_t kLongRunBytes = 4096;
constexpr size_t kShortRunBytes = 256;

// Product of two polynomials modulo kPolynomial; the highest bit is x^0.
constexpr uint32_t multiply(uint32_t a, uint32_t b) {
  uint32_t product = 0;
  for (uint32_t bit = 0x80000000u; bit != 0; bit >>= 1) {
    if ((a & bit) != 0) product ^= b;
    b = (b >> 1) ^ (kPolynomial & (0u - (b & 1)));
  }
  return product;
}

// x^(8 * bytes): what a sum is multiplied by when that many bytes follow.
constexpr uint32_t shift_factor(size_t bytes) {
  uint32_t factor = 0x80000000u;
  uint32_t power = divide_byte(0x80000000u);  // x^8
  for (; bytes != 0; bytes >>= 1, power = multiply(power, power)) {
    if ((bytes & 1) != 0) factor = multiply(factor, power);
  }
  return factor;
}

using ShiftTable = std::array<Table, 4>;

constexpr ShiftTable make_shift(size_t bytes) {
  ShiftTable tables{};
  const uint32_t factor = shift_factor(bytes);
  for (uint32_t k = 0; k < 4; ++k) {
    for (uint32_t b = 0; b < 256; ++b) tables[k][b] = multiply(factor, b << (8 * k));
  }
  return tables;
}
constexpr ShiftTable kLongShift = make_shift(kLongRunBytes);
constexpr ShiftTable kShortShift = make_shift(kShortRunBytes);

uint32_t shift(const ShiftTable& tables, uint32_t rest) {
  return tables[0][rest & 255] ^ tables[1][(rest >> 8) & 255] ^ tables[2][(rest >> 16) & 255] ^ tables[3][rest >> 24];
}

__attribute__((target("sse4.2"))) uint32_t three_runs(const unsigned char* p, size_t run_bytes,
                                                      const ShiftTable& tables, uint32_t rest) {
  // Only the first run continues the earlier sum. The CRC is linear: a later run starts at zero and is added.
  uint64_t first = rest, second = 0, third = 0;
  for (const unsigned char* end = p + run_bytes; p < end; p += 8) {
    first = _mm_crc32_u64(first, load_word(p));
    second = _mm_crc32_u64(second, load_word(p + run_bytes));
    third = _mm_crc32_u64(third, load_word(p + 2 * run_bytes));
  }
  const uint32_t joined = shift(tables, static_cast<uint32_t>(first)) ^ static_cast<uint32_t>(second);
  return shift(tables, joined) ^ static_cast<uint32_t>(third);
}

}  // namespace

__attribute__((target("sse4.2"))) uint32_t crc32c_hardware(const void* data, size_t bytes, uint32_t crc) {
  const auto* p = static_cast<const unsigned char*>(data);
  uint32_t rest = ~crc;
  for (; bytes >= 3 * kLongRunBytes; bytes -= 3 * kLongRunBytes, p += 3 * kLongRunBytes) {
    rest = three_runs(p, kLongRunBytes, kLongShift, rest);
  }
  for (; bytes >= 3 * kShortRunBytes; bytes -= 3 * kShortRunBytes, p += 3 * kShortRunBytes) {
    rest = three_runs(p, kShortRunBytes, kShortShift, rest);
  }
  for (; bytes >= 8; bytes -= 8, p += 8) rest = static_cast<uint32_t>(_mm_crc32_u64(rest, load_word(p)));
  for (; bytes > 0; --bytes) rest = _mm_crc32_u8(rest, *p++);
  return ~rest;
}

bool has_crc32c_hardware() { return __builtin_cpu_supports("sse4.2") != 0; }

#else

uint32_t crc32c_hardware(const void*, size_t, uint32_t) {
  // A caller that keeps the contract never gets here: the function below is false on this architecture.
  GRADRAIL_CHECK(has_crc32c_hardware());
  return 0;
}
bool has_crc32c_hardware() { return false; }

#endif

uint32_t crc32c(const void* data, size_t bytes, uint32_t crc) {
  // The choice is made once per process; C++ makes the initialization safe for all threads.
  static const auto chosen = has_crc32c_hardware() ? &crc32c_hardware : &crc32c_portable;
  return chosen(data, bytes, crc);
}

}  // namespace gradrail
