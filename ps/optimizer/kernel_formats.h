// No include guard by intent: a part of kernel_body.h, with the same restrictions. Gradients in other formats than
// fp32: packing at a worker, and the sum at a shard. ps/protocol/push_format.h draws the bytes.

namespace gradrail::ps {
namespace {

using Bits16 = unsigned short;
using Code = signed char;

float from_bits(int bits) { return __builtin_bit_cast(float, bits); }
int bits_of(float value) { return __builtin_bit_cast(int, value); }

/// All bits, or none. Signed comparisons and masks instead of branches: SSE2 and AVX2 have no unsigned comparison.
int mask_if(bool condition) { return -static_cast<int>(condition); }
int choose(int mask, int yes, int no) { return (yes & mask) | (no & ~mask); }

constexpr int kMagnitude = 0x7fffffff;
constexpr int kInfinityBits = 0x7f800000;

/// The error of a rounding. The rest of a value that is not finite is 0: infinity minus infinity would spoil the
/// next gradient.
float rest_of(float exact, float rounded) {
  const int is_finite = mask_if((bits_of(rounded) & kInfinityBits) != kInfinityBits);
  return from_bits(bits_of(exact - rounded) & is_finite);
}

struct Fp32 {
  using Element = float;
  static float value(float element) { return element; }
};

struct Bf16 {
  using Element = Bits16;
  static float value(Bits16 element) { return __builtin_bit_cast(float, static_cast<unsigned>(element) << 16); }
  static Bits16 round(float exact) {
    const int bits = bits_of(exact);
    const int upper = static_cast<int>(static_cast<unsigned>(bits) >> 16);
    const auto rounded = static_cast<int>((static_cast<unsigned>(bits) + 0x7fff + (upper & 1)) >> 16);
    // All NaN get the same bits: a GPU does not keep the bits of a NaN in a sum.
    return static_cast<Bits16>(choose(mask_if((bits & kMagnitude) > kInfinityBits), 0x7fc0, rounded));
  }
};

template <typename Format>
void pack_elements(const float* __restrict gradient, float* __restrict rest, void* packed, size_t count) {
  Bits16* __restrict const elements = static_cast<Bits16*>(packed);
  for (size_t i = 0; i < count; ++i) {
    const float exact = gradient[i] + rest[i];
    elements[i] = Format::round(exact);
    rest[i] = rest_of(exact, Format::value(elements[i]));
  }
}

constexpr size_t kBlock = 64;

/// A vector of the instruction set. GCC 12 widens bytes in several steps and through memory. Therefore the sum of int8
/// and int4 names its vectors.
using Floats = Lanes::Floats;
using FloatsAnywhere [[gnu::vector_size(sizeof(Floats)), gnu::aligned(alignof(float)), gnu::may_alias]] = float;

Floats load(const float* source) { return *reinterpret_cast<const FloatsAnywhere*>(source); }
void store(float* target, Floats values) { *reinterpret_cast<FloatsAnywhere*>(target) = values; }

/// Enough to hide the latency of an addition, and a whole block in the widest instruction set.
struct Quad {
  Floats v0, v1, v2, v3;
};
constexpr size_t kQuad = 4 * Lanes::kElements;
static_assert(kBlock % kQuad == 0);

/// int8 and int4: kCodes is the largest code.
template <int kCodes>
struct Blocks {
  static constexpr bool kIsHalf = kCodes == 7;
  static constexpr int kNan = -kCodes - 1;

  static size_t block_count(size_t count) { return (count + kBlock - 1) / kBlock; }
  static size_t code_bytes(size_t count) { return kIsHalf ? (count + 1) / 2 : count; }

  /// The smallest bf16 with which no code exceeds kCodes. A very small block has 0, because the inverse of its scale
  /// would be infinite: all of it stays in the rest.
  static Bits16 scale_for(int magnitude) {
    if (magnitude < 0x0d800000) return 0;  // 2^-100
    const float exact = from_bits(magnitude) * (1.0f / kCodes);
    return static_cast<Bits16>((static_cast<unsigned>(bits_of(exact)) + 0xffff) >> 16);
  }

  static float inverse_of(float step) { return step == 0.0f ? 0.0f : 1.0f / step; }

  /// The code nearest to value / scale, ties to even: an addition rounds it to the last bit of the constant.
  static int code_of(float value, float inverse) {
    constexpr float kRounds = 0x1.8p23f;
    const int code = bits_of(value * inverse + kRounds) - bits_of(kRounds);
    const int low = choose(mask_if(code < -kCodes), -kCodes, code);
    return choose(mask_if(low > kCodes), kCodes, low);
  }

  static void store(const int* __restrict codes, Code* __restrict packed, size_t count) {
    if constexpr (kIsHalf) {
      const size_t half = (count + 1) / 2;
      for (size_t j = 0; j < half; ++j) packed[j] = static_cast<Code>((codes[j] & 15) | codes[j + half] << 4);
    } else {
      for (size_t j = 0; j < count; ++j) packed[j] = static_cast<Code>(codes[j]);
    }
  }

  static int code_at(const Code* packed, size_t j, size_t count) {
    if constexpr (!kIsHalf) return packed[j];
    const size_t half = (count + 1) / 2;
    return j < half ? static_cast<int>(static_cast<unsigned>(packed[j]) << 28) >> 28 : packed[j - half] >> 4;
  }

  /// The codes from the element `at` of a full block on.
  static Floats codes_at(const Code* codes, size_t at) {
    const bool is_upper = kIsHalf && at >= kBlock / 2;
    Lanes::Ints values = Lanes::widen(is_upper ? codes + at - kBlock / 2 : codes + at);
    if constexpr (kIsHalf) values = is_upper ? values >> 4 : values << 28 >> 28;
    return __builtin_convertvector(values, Floats);
  }

  static bool is_special(Bits16 scale) { return (scale & 0x8000) != 0; }

  /// Rare, and therefore simple: one element after the other.
  static Bits16 pack_special(const float* exact, float* rest, int* codes, size_t count) {
    int largest = 0;
    for (size_t j = 0; j < count; ++j) {
      const int magnitude = bits_of(exact[j]) & kMagnitude;
      if (magnitude < kInfinityBits && magnitude > largest) largest = magnitude;
    }
    const Bits16 scale = Blocks<kCodes - 1>::scale_for(largest);
    const float step = Bf16::value(scale);
    const float inverse = inverse_of(step);
    for (size_t j = 0; j < count; ++j) {
      const int bits = bits_of(exact[j]);
      if ((bits & kMagnitude) >= kInfinityBits) {
        codes[j] = (bits & kMagnitude) > kInfinityBits ? kNan : bits < 0 ? -kCodes : kCodes;
        rest[j] = 0.0f;
      } else {
        codes[j] = Blocks<kCodes - 1>::code_of(exact[j], inverse);
        rest[j] = rest_of(exact[j], static_cast<float>(codes[j]) * step);
      }
    }
    return static_cast<Bits16>(scale | 0x8000);
  }

  static float special_value(int code, Bits16 scale) {
    if (code == kNan) return from_bits(0x7fc00000);
    if (code == kCodes || code == -kCodes) return from_bits(code < 0 ? ~kMagnitude | kInfinityBits : kInfinityBits);
    return static_cast<float>(code) * Bf16::value(static_cast<Bits16>(scale & 0x7fff));
  }

  template <size_t kCount>
  static Bits16 pack_block(const float* __restrict gradient, float* __restrict rest, Code* __restrict packed,
                           size_t short_count) {
    const size_t count = kCount > 0 ? kCount : short_count;
    float exact[kBlock];
    int codes[kBlock + 1];
    codes[count] = 0;  // the upper half of the last byte of an odd number of codes
    int largest = 0;
    for (size_t j = 0; j < count; ++j) {
      exact[j] = gradient[j] + rest[j];
      const int magnitude = bits_of(exact[j]) & kMagnitude;
      largest = magnitude > largest ? magnitude : largest;
    }
    Bits16 scale = 0;
    if (largest >= kInfinityBits) {
      scale = pack_special(exact, rest, codes, count);
    } else {
      scale = scale_for(largest);
      const float step = Bf16::value(scale);
      const float inverse = inverse_of(step);
      for (size_t j = 0; j < count; ++j) {
        codes[j] = code_of(exact[j], inverse);
        rest[j] = rest_of(exact[j], static_cast<float>(codes[j]) * step);
      }
    }
    store(codes, packed, count);
    return scale;
  }

  static void pack(const float* gradient, float* rest, void* packed, size_t count) {
    Bits16* const scales = static_cast<Bits16*>(packed);
    Code* codes = reinterpret_cast<Code*>(scales + block_count(count));
    size_t first = 0;
    for (; first + kBlock <= count; first += kBlock, codes += code_bytes(kBlock))
      scales[first / kBlock] = pack_block<kBlock>(gradient + first, rest + first, codes, kBlock);
    if (first < count) scales[first / kBlock] = pack_block<0>(gradient + first, rest + first, codes, count - first);
  }

  /// Offset of the codes of a block in a bucket of `count` elements.
  static size_t codes_offset(size_t count, size_t block) {
    return block_count(count) * sizeof(Bits16) + block * code_bytes(kBlock);
  }
  static const Code* codes_of(const float* bucket, size_t offset) {
    return reinterpret_cast<const Code*>(bucket) + offset;
  }
  static Bits16 scale_of(const float* bucket, size_t block) { return reinterpret_cast<const Bits16*>(bucket)[block]; }

  static bool any_special(const KernelArguments& a, size_t block) {
    unsigned all = 0;
    for (size_t i = 0; i < a.gradient_count; ++i) all |= scale_of(a.gradients[i], block);
    return is_special(static_cast<Bits16>(all));
  }

  static Quad values_at(const KernelArguments& a, size_t i, size_t block, size_t offset, size_t at) {
    const Code* const codes = codes_of(a.gradients[i], offset);
    const float step = Bf16::value(scale_of(a.gradients[i], block));
    return {codes_at(codes, at) * step, codes_at(codes, at + Lanes::kElements) * step,
            codes_at(codes, at + 2 * Lanes::kElements) * step, codes_at(codes, at + 3 * Lanes::kElements) * step};
  }

  /// The sum over all gradients of kQuad elements of a full block without NaN or infinity.
  static Quad sum_at(const KernelArguments& a, size_t block, size_t offset, size_t at) {
    Quad sum = values_at(a, 0, block, offset, at);
    for (size_t i = 1; i < a.gradient_count; ++i) {
      const Quad more = values_at(a, i, block, offset, at);
      sum = {sum.v0 + more.v0, sum.v1 + more.v1, sum.v2 + more.v2, sum.v3 + more.v3};
    }
    return sum;
  }

  /// A short block, or one with NaN or infinity.
  [[gnu::noinline]] static void sum_slowly(const KernelArguments& a, size_t block, size_t count, float* sum) {
    const size_t offset = codes_offset(a.count, block);
    for (size_t i = 0; i < a.gradient_count; ++i) {
      const Code* const codes = codes_of(a.gradients[i], offset);
      const Bits16 scale = scale_of(a.gradients[i], block);
      for (size_t j = 0; j < count; ++j) {
        const int code = code_at(codes, j, count);
        const float value =
            is_special(scale) ? special_value(code, scale) : static_cast<float>(code) * Bf16::value(scale);
        sum[j] = i == 0 ? value : sum[j] + value;
      }
    }
  }

  /// Calls quad(sum, at) for each kQuad elements, or slow(sums, at, count) for a block of sum_slowly(). `first` begins
  /// a block, and `at` counts from it.
  template <typename QuadFunction, typename SlowFunction>
  static void for_each_sum(const KernelArguments& a, size_t first, size_t count, const QuadFunction& quad,
                           const SlowFunction& slow) {
    float sums[kBlock];
    for (size_t at = 0; at < count; at += kBlock) {
      const size_t block = (first + at) / kBlock;
      const size_t in_block = count - at < kBlock ? count - at : kBlock;
      if (in_block < kBlock || any_special(a, block)) {
        sum_slowly(a, block, in_block, sums);
        slow(sums, at, in_block);
        continue;
      }
      const size_t offset = codes_offset(a.count, block);
      for (size_t j = 0; j < kBlock; j += kQuad) quad(sum_at(a, block, offset, j), at + j);
    }
  }
};

}  // namespace
}  // namespace gradrail::ps
