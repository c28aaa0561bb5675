#pragma once

#include "gpu/kernels/arguments.h"

// Elements of gradients in each format, for nvcc and for the host's compiler. ps/protocol/push_format.h draws the
// bytes. The results have the bits of ps/optimizer/kernel_formats.h.

#ifdef __CUDACC__
#define GRADRAIL_DEVICE __device__
#define GRADRAIL_UNROLL _Pragma("unroll")
#define GRADRAIL_UNROLL_BY_4 _Pragma("unroll 4")
#else
#define GRADRAIL_DEVICE
#define GRADRAIL_UNROLL
#define GRADRAIL_UNROLL_BY_4
#endif

namespace gradrail::gpu::kernels {

inline constexpr Bits32 kMagnitude = 0x7fffffffu;
inline constexpr Bits32 kInfinityBits = 0x7f800000u;

GRADRAIL_DEVICE inline float float_of(Bits32 bits) { return __builtin_bit_cast(float, bits); }
GRADRAIL_DEVICE inline Bits32 bits_of(float value) { return __builtin_bit_cast(Bits32, value); }

/// The error of a rounding. The rest of a value that is not finite is 0.
GRADRAIL_DEVICE inline float rest_of(float exact, float rounded) {
  return (bits_of(rounded) & kInfinityBits) == kInfinityBits ? 0.0f : exact - rounded;
}

struct F32 {
  float value;
};
struct Bf16 {
  Bits16 bits;
};

GRADRAIL_DEVICE inline float widen(F32 element) { return element.value; }
GRADRAIL_DEVICE inline float widen(Bf16 element) { return float_of(static_cast<Bits32>(element.bits) << 16); }

/// Rounds to nearest, ties to even. Each NaN becomes the same one: a sum on a GPU does not keep its bits.
GRADRAIL_DEVICE inline void narrow(float value, Bf16& element) {
  const Bits32 bits = bits_of(value);
  const Bits32 rounded = value != value ? 0x7fc00000u : bits + 0x7fffu + (bits >> 16 & 1u);
  element.bits = static_cast<Bits16>(rounded >> 16);
}

/// Rounds gradient + rest, and keeps what the rounding leaves out.
template <typename Element>
GRADRAIL_DEVICE Element pack_element(float gradient, float& rest) {
  const float exact = gradient + rest;
  Element element;
  narrow(exact, element);
  rest = rest_of(exact, widen(element));
  return element;
}

/// Four elements, loaded and stored together: 16 bytes of float, 8 of bf16. The quads of a warp are adjacent.
template <typename T>
struct alignas(4 * sizeof(T)) Quad {
  T at[4];
};

template <typename T>
GRADRAIL_DEVICE const Quad<T>* quads(const T* first) {
  return reinterpret_cast<const Quad<T>*>(first);
}
template <typename T>
GRADRAIL_DEVICE Quad<T>* quads(T* first) {
  return reinterpret_cast<Quad<T>*>(first);
}

inline constexpr Bits32 kBlock = 64;  ///< elements that share a scale

/// int8 and int4: kCodes is the largest code. A bucket has the scales of all blocks, then their codes.
template <int kCodes>
struct Blocks {
  static constexpr bool kIsHalf = kCodes == 7;
  static constexpr int kNan = -kCodes - 1;
  static constexpr Bits32 kCodeBytes = kIsHalf ? kBlock / 2 : kBlock;

  GRADRAIL_DEVICE static Count block_count(Count count) { return (count + kBlock - 1) / kBlock; }
  GRADRAIL_DEVICE static Bits32 elements_of(Count count, Count block) {
    const Count left = count - block * kBlock;
    return left < kBlock ? static_cast<Bits32>(left) : kBlock;
  }
  GRADRAIL_DEVICE static Count codes_at(Count count, Count block) {
    return block_count(count) * sizeof(Bits16) + block * kCodeBytes;
  }

  struct Block {
    const signed char* codes;
    Bits32 elements;
    Bits16 scale;

    GRADRAIL_DEVICE int code(Count i) const {
      if constexpr (!kIsHalf) return codes[i];
      const Bits32 half = (elements + 1) / 2;
      return i < half ? static_cast<int>(static_cast<Bits32>(codes[i]) << 28) >> 28 : codes[i - half] >> 4;
    }
    GRADRAIL_DEVICE float value(Count i) const { return value_of(code(i), scale); }
  };
  GRADRAIL_DEVICE static float value_of(int code, Bits16 scale) {
    if ((scale & 0x8000) != 0) {  // a block with NaN or infinity
      if (code == kNan) return float_of(0x7fc00000u);
      if (code == kCodes || code == -kCodes) return float_of(code < 0 ? kInfinityBits | ~kMagnitude : kInfinityBits);
    }
    return static_cast<float>(code) * widen(Bf16{static_cast<Bits16>(scale & 0x7fff)});
  }
  /// A block of a bucket of `count` elements.
  GRADRAIL_DEVICE static Block block_at(const void* bucket, Count count, Count block) {
    return {.codes = static_cast<const signed char*>(bucket) + codes_at(count, block),
            .elements = elements_of(count, block),
            .scale = static_cast<const Bits16*>(bucket)[block]};
  }

  /// The smallest bf16 with which no code exceeds kCodes; 0 for a very small block.
  GRADRAIL_DEVICE static Bits16 scale_for(Bits32 magnitude) {
    if (magnitude < 0x0d800000u) return 0;  // 2^-100
    return static_cast<Bits16>((bits_of(float_of(magnitude) * (1.0f / kCodes)) + 0xffffu) >> 16);
  }

  /// The code nearest to value × inverse, ties to even: an addition rounds it to the last bit of the constant.
  GRADRAIL_DEVICE static int nearest_code(float value, float inverse) {
    constexpr float kRounds = 0x1.8p23f;
    const int code = static_cast<int>(bits_of(value * inverse + kRounds) - bits_of(kRounds));
    const int low = code < -kCodes ? -kCodes : code;
    return low > kCodes ? kCodes : low;
  }

  /// Packs one value: returns its code, and sets its remainder.
  GRADRAIL_DEVICE static int pack_value(float exact, float step, float inverse, float& rest) {
    const int code = nearest_code(exact, inverse);
    rest = rest_of(exact, static_cast<float>(code) * step);
    return code;
  }
  /// The same in a block with NaN or infinity.
  GRADRAIL_DEVICE static int pack_special(float exact, float step, float inverse, float& rest) {
    const Bits32 magnitude = bits_of(exact) & kMagnitude;
    if (magnitude < kInfinityBits) return Blocks<kCodes - 1>::pack_value(exact, step, inverse, rest);
    rest = 0.0f;
    if (magnitude > kInfinityBits) return kNan;
    return exact < 0.0f ? -kCodes : kCodes;
  }

  /// Conversion of the values of a block to codes.
  struct Coding {
    bool is_special;  ///< the block has NaN or infinity
    Bits16 scale;
    float step, inverse;

    GRADRAIL_DEVICE int code(float exact, float& rest) const {
      return is_special ? pack_special(exact, step, inverse, rest) : pack_value(exact, step, inverse, rest);
    }
    GRADRAIL_DEVICE Bits16 header() const { return static_cast<Bits16>(is_special ? scale | 0x8000 : scale); }
  };
  /// The largest magnitudes of a block.
  struct Largest {
    Bits32 any = 0, finite = 0;

    GRADRAIL_DEVICE void add(float exact) {
      const Bits32 magnitude = bits_of(exact) & kMagnitude;
      any = magnitude > any ? magnitude : any;
      if (magnitude < kInfinityBits && magnitude > finite) finite = magnitude;
    }
    GRADRAIL_DEVICE Coding coding() const {
      const bool is_special = any >= kInfinityBits;
      const Bits16 scale = is_special ? Blocks<kCodes - 1>::scale_for(finite) : scale_for(any);
      const float step = widen(Bf16{scale});
      return {is_special, scale, step, step == 0.0f ? 0.0f : 1.0f / step};
    }
  };

  /// Shapes  gradient, rest: [in_block]; codes: as many bytes as the block has, from an even address.
  GRADRAIL_DEVICE static Bits16 pack_block(const float* gradient, float* rest, signed char* codes, Bits32 in_block) {
    const bool has_quads = in_block == kBlock && is_aligned(gradient) && is_aligned(rest);
    return has_quads ? pack_quads(quads(gradient), quads(rest), codes) : pack_singles(gradient, rest, codes, in_block);
  }
  GRADRAIL_DEVICE static bool is_aligned(const float* first) {
    return reinterpret_cast<Count>(first) % sizeof(Quad<float>) == 0;
  }

  /// A whole block stays in registers: all of its indexes are constants.
  GRADRAIL_DEVICE static Bits16 pack_quads(const Quad<float>* gradient, Quad<float>* rest, signed char* codes) {
    Quad<float> exact[kBlock / 4];
    Largest largest;
    GRADRAIL_UNROLL
    for (Bits32 q = 0; q < kBlock / 4; ++q) {
      const Quad<float> from = gradient[q], left = rest[q];
      GRADRAIL_UNROLL
      for (int e = 0; e < 4; ++e) {
        exact[q].at[e] = from.at[e] + left.at[e];
        largest.add(exact[q].at[e]);
      }
    }
    const Coding coding = largest.coding();
    GRADRAIL_UNROLL
    for (Bits32 q = 0; q < kCodeBytes / 4; ++q) {
      Bits32 bytes[4];
      Quad<float> low, high;
      GRADRAIL_UNROLL
      for (int e = 0; e < 4; ++e) {
        bytes[e] = static_cast<Bits32>(coding.code(exact[q].at[e], low.at[e])) & (kIsHalf ? 15u : 255u);
        if constexpr (kIsHalf)
          bytes[e] |= (static_cast<Bits32>(coding.code(exact[q + kBlock / 8].at[e], high.at[e])) & 15u) << 4;
      }
      rest[q] = low;
      if constexpr (kIsHalf) rest[q + kBlock / 8] = high;
      Bits16* const pairs = reinterpret_cast<Bits16*>(codes) + 2 * q;
      pairs[0] = static_cast<Bits16>(bytes[0] | bytes[1] << 8);
      pairs[1] = static_cast<Bits16>(bytes[2] | bytes[3] << 8);
    }
    return coding.header();
  }

  /// Reads the block twice.
  GRADRAIL_DEVICE static Bits16 pack_singles(const float* gradient, float* rest, signed char* codes, Bits32 in_block) {
    Largest largest;
    for (Bits32 j = 0; j < in_block; ++j) largest.add(gradient[j] + rest[j]);
    const Coding coding = largest.coding();
    const auto code = [&](Bits32 j) { return coding.code(gradient[j] + rest[j], rest[j]); };
    const Bits32 half = (in_block + 1) / 2;
    for (Bits32 j = 0; j < (kIsHalf ? half : in_block); ++j) {
      int byte = code(j);
      if constexpr (kIsHalf) byte = (byte & 15) | (j + half < in_block ? code(j + half) << 4 : 0);
      codes[j] = static_cast<signed char>(byte);
    }
    return coding.header();
  }
};

}  // namespace gradrail::gpu::kernels
