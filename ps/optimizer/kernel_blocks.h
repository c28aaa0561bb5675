// No include guard by intent: included once by kernel_generic.cc and kernel_avx2.cc, with the restrictions of
// kernel_body.h. Blocks of 64 elements of 16 bits, as a delta has them, in plain C++.

namespace gradrail::ps {
namespace {

struct PlainBlocks {
  using Shorts [[gnu::vector_size(16), gnu::aligned(2), gnu::may_alias]] = unsigned short;
  using Halves [[gnu::vector_size(16)]] = unsigned long long;

  /// Bit j: element j of both blocks differs.
  static unsigned long long differing(const unsigned short* fresh, const unsigned short* held) {
    // Lane j of a half keeps the bit j or j + 4. The product adds the four lanes in its uppermost 16 bits.
    constexpr unsigned long long kAddLanes = 0x0001000100010001;
    const auto bits = Shorts{1, 2, 4, 8, 16, 32, 64, 128};
    unsigned long long mask = 0;
    for (size_t j = 0; j < 64; j += 8) {
      const auto differs = *reinterpret_cast<const Shorts*>(fresh + j) != *reinterpret_cast<const Shorts*>(held + j);
      const auto halves = (Halves)((Shorts)differs & bits);
      mask |= ((halves[0] * kAddLanes >> 48) | (halves[1] * kAddLanes >> 48)) << j;
    }
    return mask;
  }
  /// Copies the elements with a bit in the mask, in their order. `chosen` has room for 64, at any byte.
  static void choose(unsigned char* chosen, const unsigned short* fresh, unsigned long long mask) {
    // No branch: a mask of a model in training has no pattern.
    for (size_t j = 0; j < 64; ++j) {
      __builtin_memcpy(chosen, fresh + j, sizeof(*fresh));
      chosen += (mask >> j & 1) * sizeof(*fresh);
    }
  }
  /// The reverse. `chosen` begins at any byte; up to 32 bytes behind its last element may be read.
  static void replace(unsigned short* held, const unsigned char* chosen, unsigned long long mask) {
    for (; mask != 0; mask &= mask - 1, chosen += sizeof(*held))
      __builtin_memcpy(held + __builtin_ctzll(mask), chosen, sizeof(*held));
  }
};

}  // namespace
}  // namespace gradrail::ps
