// No include guard by intent: a part of kernel_body.h, with the same restrictions. Parameters on their way back in bf16
// and delta. ps/protocol/return_format.h draws the bytes.

namespace gradrail::ps {
namespace {

using Mask = unsigned long long;
static_assert(sizeof(Mask) == 8);

// Bytes: packed parameters may begin anywhere.
Mask load_mask(const unsigned char* masks, size_t block) {
  Mask mask;
  __builtin_memcpy(&mask, masks + block * sizeof(Mask), sizeof(Mask));
  return mask;
}
void store_mask(unsigned char* masks, size_t block, Mask mask) {
  __builtin_memcpy(masks + block * sizeof(Mask), &mask, sizeof(Mask));
}

size_t mask_bytes(size_t count) { return (count + kBlock - 1) / kBlock * sizeof(Mask); }

void round_all(const float* __restrict values, Bits16* __restrict rounded, size_t count) {
  for (size_t i = 0; i < count; ++i) rounded[i] = Bf16::round(values[i]);
}

void widen_all(const Bits16* __restrict rounded, float* __restrict values, size_t count) {
  for (size_t i = 0; i < count; ++i) values[i] = Bf16::value(rounded[i]);
}

void stamp_changes(const float* __restrict values, unsigned short number, Bits16* __restrict held,
                   unsigned short* __restrict stamps, size_t count) {
  for (size_t i = 0; i < count; ++i) {
    const Bits16 fresh = Bf16::round(values[i]);
    stamps[i] = fresh != held[i] ? number : stamps[i];
    held[i] = fresh;
  }
}

/// The elements with a stamp above `base`. The bits of a short block behind its end are 0.
Mask newer(const unsigned short* stamps, unsigned short base, size_t count) {
  static constexpr Bits16 kNone[kBlock] = {};
  Bits16 is_newer[kBlock] = {};
  if (count == kBlock) {  // a fixed number of turns
    for (size_t j = 0; j < kBlock; ++j) is_newer[j] = stamps[j] > base ? 1 : 0;
  } else {
    for (size_t j = 0; j < count; ++j) is_newer[j] = stamps[j] > base ? 1 : 0;
  }
  return Lanes::differing(is_newer, kNone);
}

size_t pack_delta(const Bits16* __restrict held, const unsigned short* __restrict stamps, unsigned short base,
                  void* packed, size_t count) {
  unsigned char* const masks = static_cast<unsigned char*>(packed);
  unsigned char* out = masks + mask_bytes(count);
  const unsigned char* const whole_end = masks + count * sizeof(Bits16);
  if (out >= whole_end) return 0;
  for (size_t first = 0; first < count; first += kBlock) {
    const size_t in_block = count - first < kBlock ? count - first : kBlock;
    const Mask mask = newer(stamps + first, base, in_block);
    const size_t bytes = static_cast<size_t>(__builtin_popcountll(mask)) * sizeof(Bits16);
    // No byte after the end of a whole answer is written.
    if (out + bytes >= whole_end) return 0;
    store_mask(masks, first / kBlock, mask);
    if (mask == 0) continue;
    if (in_block == kBlock && out + kBlock * sizeof(Bits16) <= whole_end) {
      Lanes::choose(out, held + first, mask);
    } else {
      Bits16 block[kBlock] = {};
      unsigned char chosen[kBlock * sizeof(Bits16)];
      __builtin_memcpy(block, held + first, in_block * sizeof(Bits16));
      Lanes::choose(chosen, block, mask);
      __builtin_memcpy(out, chosen, bytes);
    }
    out += bytes;
  }
  return static_cast<size_t>(out - masks);
}

void unpack_delta(const void* packed, Bits16* __restrict held, float* __restrict values, size_t count) {
  const unsigned char* const masks = static_cast<const unsigned char*>(packed);
  const unsigned char* in = masks + mask_bytes(count);
  for (size_t first = 0; first < count; first += kBlock) {
    const size_t in_block = count - first < kBlock ? count - first : kBlock;
    Mask mask = load_mask(masks, first / kBlock);
    if (in_block < kBlock) mask &= (Mask{1} << in_block) - 1;  // another process sends these bytes
    const size_t bytes = static_cast<size_t>(__builtin_popcountll(mask)) * sizeof(Bits16);
    if (in_block == kBlock) {
      if (mask != 0) Lanes::replace(held + first, in, mask);
      widen_all(held + first, values + first, kBlock);
    } else {
      const unsigned char* next = in;
      for (Mask left = mask; left != 0; left &= left - 1, next += sizeof(Bits16))
        __builtin_memcpy(held + first + __builtin_ctzll(left), next, sizeof(Bits16));
      widen_all(held + first, values + first, in_block);
    }
    in += bytes;
  }
}

}  // namespace
}  // namespace gradrail::ps
