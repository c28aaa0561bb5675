// No include guard by intent: included once by kernel_generic.cc and kernel_avx2.cc, with the restrictions of
// kernel_body.h. Blocks of 64 elements of 16 bits, as a delta has them, in plain C++.

namespace gradrail::ps {
namespace {

struct PlainBlocks {
  /// Bit j: element j of both blocks differs.
  static unsigned long long differing(const unsigned short* fresh, const unsigned short* held) {
    unsigned long long mask = 0;
    for (size_t j = 0; j < 64; ++j) mask |= static_cast<unsigned long long>(fresh[j] != held[j]) << j;
    return mask;
  }
  /// Copies the elements with a bit in the mask, in their order. `chosen` has room for 128.
  static void choose(unsigned short* chosen, const unsigned short* fresh, unsigned long long mask) {
    // No branch: a mask of a model in training has no pattern.
    for (size_t j = 0; j < 64; ++j) {
      *chosen = fresh[j];
      chosen += mask >> j & 1;
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
