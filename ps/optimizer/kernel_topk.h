// No include guard by intent: a part of kernel_body.h, with the same restrictions. Gradients in topk: selection at a
// worker, and the sum at a shard. ps/protocol/push_format.h draws the bytes.

namespace gradrail::ps {
namespace {

constexpr size_t kChunk = 4096;
constexpr int kNanBits = 0x7fc00000;
constexpr Bits16 kNoElement[kBlock] = {};

/// Value that at least `wanted` keys reach, raised bit by bit until not many more reach it. Each bit is one pass of
/// vector comparisons, which is faster than a histogram: that counts one element at a time.
/// Shapes  keys: `count`, and further ones below `least` up to a multiple of kBlock.
template <typename Key>
class Threshold {
 public:
  // AVX-512 without BW compares 16-bit elements in 32 bytes only.
  static constexpr size_t kBytes = sizeof(Key) < sizeof(int) && sizeof(Floats) > 32 ? 32 : sizeof(Floats);
  static constexpr size_t kLanes = kBytes / sizeof(Key);
  using Keys [[gnu::vector_size(kBytes), gnu::may_alias]] = Key;
  static_assert(kBlock % (2 * kLanes) == 0);

  /// All keys are at least `least`, and less than least + 2^bits. Ends when `enough` or fewer keys reach the value.
  Threshold(const Key* keys, size_t count, size_t wanted, size_t enough, int least, int bits)
      : value_(least), bits_(bits), reached_(count) {
    while (reached_ > enough && bits_ > 0) {
      const int next = value_ + (1 << --bits_);
      const size_t reached = count_from(keys, count, next);
      if (reached < wanted) continue;
      value_ = next;
      reached_ = reached;
    }
  }
  int value() const { return value_; }
  int bits() const { return bits_; }  ///< the wanted key of least value is less than value + 2^bits
  size_t reached() const { return reached_; }

  static size_t count_from(const Key* keys, size_t count, int least) {
    const Keys limit = Keys{} + static_cast<Key>(least - 1);
    const Keys* const vectors = reinterpret_cast<const Keys*>(keys);
    // Two sums: one would wait for its own result in each step. A lane of 16 bits counts to 512 at most.
    Keys even = {}, odd = {};
    for (size_t i = 0; i * kLanes < count; i += 2) {
      even -= vectors[i] > limit;
      odd -= vectors[i + 1] > limit;
    }
    alignas(64) Key sums[kLanes];
    *reinterpret_cast<Keys*>(sums) = even + odd;
    size_t all = 0;
    for (const Key sum : sums) all += static_cast<size_t>(sum);
    return all;
  }

 private:
  int value_;
  int bits_;
  size_t reached_;
};

struct Topk {
  static size_t kept(size_t count, unsigned thousandths) { return (count * thousandths + 999) / 1000; }

  /// The keys are the upper halves of the magnitudes. NaN has one value: instruction sets choose other bits of it in a
  /// sum.
  static void add_rest(const float* __restrict gradient, float* __restrict rest, short* __restrict keys, size_t count) {
    for (size_t i = 0; i < count; ++i) {
      const int bits = bits_of(gradient[i] + rest[i]);
      const int exact = choose(mask_if((bits & kMagnitude) > kInfinityBits), kNanBits, bits);
      rest[i] = from_bits(exact);
      keys[i] = static_cast<short>((exact & kMagnitude) >> 16);
    }
  }

  /// The indexes of the keys from `least` on, in ascending order. Returns their number.
  /// Shapes  keys: as for Threshold.
  static size_t indexes_from(const short* keys, size_t count, int least, Bits16* indexes) {
    Bits16 reaches[kBlock];
    size_t found = 0;
    for (size_t first = 0; first < count; first += kBlock) {
      for (size_t j = 0; j < kBlock; ++j) reaches[j] = keys[first + j] >= least ? 1 : 0;
      for (unsigned long long left = Lanes::differing(reaches, kNoElement); left != 0; left &= left - 1)
        indexes[found++] = static_cast<Bits16>(first + static_cast<size_t>(__builtin_ctzll(left)));
    }
    return found;
  }

  /// Number of elements above `wanted` beyond which another pass over all keys takes less time than the selection among
  /// the magnitudes.
  static constexpr size_t kSpare = 128;

  static void pack_chunk(const float* gradient, float* rest, unsigned* packed, size_t count, size_t wanted) {
    alignas(64) short keys[kChunk];
    alignas(64) int magnitudes[kChunk];
    Bits16 indexes[kChunk];
    add_rest(gradient, rest, keys, count);
    for (size_t i = count; i % kBlock != 0; ++i) keys[i] = -1;
    const Threshold<short> upper(keys, count, wanted, wanted + kSpare, 0, 15);
    const size_t found = indexes_from(keys, count, upper.value(), indexes);
    for (size_t i = 0; i < found; ++i) magnitudes[i] = bits_of(rest[indexes[i]]) & kMagnitude;
    for (size_t i = found; i % kBlock != 0; ++i) magnitudes[i] = -1;
    const Threshold<int> whole(magnitudes, found, wanted, wanted, upper.value() << 16, upper.bits() + 16);
    // The last selected elements equal the value if all bits are found and more than `wanted` elements reach it.
    size_t equal = wanted;
    if (whole.reached() > wanted) equal -= Threshold<int>::count_from(magnitudes, found, whole.value() + 1);
    for (size_t i = 0; i < found; ++i) {
      const bool is_equal = magnitudes[i] == whole.value();
      if (magnitudes[i] < whole.value() || (is_equal && equal == 0)) continue;
      equal -= is_equal;
      float* const value = rest + indexes[i];
      const Bits16 rounded = Bf16::round(*value);
      *packed++ = static_cast<unsigned>(indexes[i]) << 16 | rounded;
      *value = rest_of(*value, Bf16::value(rounded));
    }
  }

  static void pack(const float* gradient, float* rest, void* packed, size_t count, unsigned thousandths) {
    auto* next = static_cast<unsigned*>(packed);
    for (size_t first = 0; first < count; first += kChunk) {
      const size_t in_chunk = count - first < kChunk ? count - first : kChunk;
      const size_t wanted = kept(in_chunk, thousandths);
      pack_chunk(gradient + first, rest + first, next, in_chunk, wanted);
      next += wanted;
    }
  }

  /// Sum of a chunk over all gradients, in worker order. Another process sends the indexes: one beyond the chunk is
  /// ignored.
  static void sum_chunk(const KernelArguments& a, size_t first, size_t count, float* sum) {
    for (size_t i = 0; i < count; ++i) sum[i] = 0.0f;
    const size_t offset = first / kChunk * kept(kChunk, a.thousandths);
    const size_t selected = kept(count, a.thousandths);
    for (size_t i = 0; i < a.gradient_count; ++i) {
      const unsigned* const elements = reinterpret_cast<const unsigned*>(a.gradients[i]) + offset;
      for (size_t j = 0; j < selected; ++j) {
        const unsigned element = elements[j];
        const size_t index = element >> 16;
        if (index < count) sum[index] += Bf16::value(static_cast<Bits16>(element));
      }
    }
  }
};

}  // namespace
}  // namespace gradrail::ps
