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

/// The bits of a short block behind its end are 0.
Mask short_mask(const Bits16* fresh, const Bits16* held, size_t count) {
  Mask mask = 0;
  for (size_t j = 0; j < count; ++j) mask |= static_cast<Mask>(fresh[j] != held[j]) << j;
  return mask;
}

size_t pack_delta(const float* __restrict values, Bits16* __restrict held, void* packed, size_t count) {
  unsigned char* const masks = static_cast<unsigned char*>(packed);
  unsigned char* out = masks + mask_bytes(count);
  const unsigned char* const whole_end = masks + count * sizeof(Bits16);
  bool fits = out < whole_end;
  Bits16 fresh[kBlock];
  for (size_t first = 0; first < count; first += kBlock) {
    const size_t in_block = count - first < kBlock ? count - first : kBlock;
    Mask mask;
    if (in_block == kBlock) {
      round_all(values + first, fresh, kBlock);
      mask = Lanes::differing(fresh, held + first);
      if (mask != 0) __builtin_memcpy(held + first, fresh, sizeof(fresh));
    } else {
      round_all(values + first, fresh, in_block);
      mask = short_mask(fresh, held + first, in_block);
      for (size_t j = 0; j < in_block; ++j) held[first + j] = fresh[j];
    }
    if (!fits) continue;
    const size_t bytes = static_cast<size_t>(__builtin_popcountll(mask)) * sizeof(Bits16);
    // Not one byte behind a whole answer is written.
    fits = out + bytes < whole_end;
    if (!fits) continue;
    store_mask(masks, first / kBlock, mask);
    if (mask == 0) continue;
    if (out + kBlock * sizeof(Bits16) <= whole_end) {
      Lanes::choose(out, fresh, mask);
    } else {
      unsigned char chosen[kBlock * sizeof(Bits16)];
      Lanes::choose(chosen, fresh, mask);
      __builtin_memcpy(out, chosen, bytes);
    }
    out += bytes;
  }
  return fits ? static_cast<size_t>(out - masks) : 0;
}

void unpack_delta(const void* packed, Bits16* __restrict held, float* __restrict values, size_t count) {
  const unsigned char* const masks = static_cast<const unsigned char*>(packed);
  const unsigned char* in = masks + mask_bytes(count);
  for (size_t first = 0; first < count; first += kBlock) {
    const size_t in_block = count - first < kBlock ? count - first : kBlock;
    Mask mask = load_mask(masks, first / kBlock);
    if (in_block < kBlock) mask &= (Mask{1} << in_block) - 1;  // the bytes come from another process
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
