#include "worker/publish/delta.h"

#include <bit>
#include <cstring>

#include "base/little_endian.h"

namespace gradrail::publish {
namespace {

enum class Kind : uint32_t { same = 0, gaps = 1, bitmap = 2, raw = 3 };

constexpr uint32_t kKindShift = 30;
constexpr size_t kMaxVarintBytes = 5;  // maximum for 32 bits
constexpr size_t kElementsOfWord = 64;

template <typename T>
T zigzag(T difference) {
  constexpr int kSign = 8 * sizeof(T) - 1;
  return static_cast<T>(static_cast<T>(difference << 1) ^ static_cast<T>(-(difference >> kSign)));
}

template <typename T>
T unzigzag(T value) {
  return static_cast<T>((value >> 1) ^ static_cast<T>(-(value & 1)));
}

std::byte* put_varint(uint32_t value, std::byte* to) {
  while (value >= 0x80) {
    *to++ = static_cast<std::byte>(value | 0x80);
    value >>= 7;
  }
  *to++ = static_cast<std::byte>(value);
  return to;
}

/// Returns the first byte after the varint, or null: it is truncated or has more than 32 bits.
const std::byte* take_varint(const std::byte* from, const std::byte* end, uint32_t& value) {
  value = 0;
  for (int shift = 0; shift < 35; shift += 7) {
    if (from == end) return nullptr;
    const auto next = std::to_integer<uint32_t>(*from++);
    if (shift == 28 && next > 0x0f) return nullptr;
    value |= (next & 0x7f) << shift;
    if (next < 0x80) return from;
  }
  return nullptr;
}

/// A bit for each of `count` elements, up to 64, that differs.
template <typename T>
uint64_t changes(const T* before, const T* now, size_t count) {
  uint64_t mask = 0;
  for (size_t i = 0; i < count; ++i) mask |= static_cast<uint64_t>(before[i] != now[i]) << i;
  return mask;
}

/// Fills a word of the bitmap for each 64 elements. Returns the number of changed elements.
template <typename T>
size_t fill_bitmap(absl::Span<const T> before, absl::Span<const T> now, std::vector<uint64_t>& bitmap) {
  size_t changed = 0;
  for (size_t word = 0; word < bitmap.size(); ++word) {
    const size_t first = word * kElementsOfWord;
    const size_t count = std::min(kElementsOfWord, now.size() - first);
    // Most 64-element groups of a sparse update are equal, and memcmp is several times as fast.
    const bool same = std::memcmp(&before[first], &now[first], count * sizeof(T)) == 0;
    bitmap[word] = same ? 0 : changes(&before[first], &now[first], count);
    changed += static_cast<size_t>(std::popcount(bitmap[word]));
  }
  return changed;
}

/// Calls `visit(i)` for each set bit, in order.
template <typename Visit>
void for_each_bit(const std::vector<uint64_t>& bitmap, Visit visit) {
  for (size_t word = 0; word < bitmap.size(); ++word) {
    for (uint64_t rest = bitmap[word]; rest != 0; rest &= rest - 1)
      visit(word * kElementsOfWord + static_cast<size_t>(std::countr_zero(rest)));
  }
}

void append_header(Kind kind, size_t bytes, std::vector<std::byte>& delta) {
  std::byte header[kChunkHeaderBytes];
  store_le(header, static_cast<uint32_t>(kind) << kKindShift | static_cast<uint32_t>(bytes));
  delta.insert(delta.end(), header, header + kChunkHeaderBytes);
}

template <typename T>
bool append(absl::Span<const T> before, absl::Span<const T> now, std::vector<std::byte>& delta) {
  std::vector<uint64_t> bitmap((now.size() + kElementsOfWord - 1) / kElementsOfWord);
  const size_t changed = fill_bitmap(before, now, bitmap);
  if (changed == 0) {
    append_header(Kind::same, 0, delta);
    return false;
  }
  const size_t bitmap_bytes = (now.size() + 7) / 8;
  const bool gaps = changed < bitmap_bytes;  // most gaps then take one byte
  std::vector<std::byte> payload((gaps ? changed * kMaxVarintBytes : bitmap_bytes) + changed * kMaxVarintBytes);
  std::byte* to = payload.data();
  if (!gaps) {
    std::memcpy(to, bitmap.data(), bitmap_bytes);
    to += bitmap_bytes;
  }
  size_t next = 0;
  for_each_bit(bitmap, [&](size_t i) {
    if (gaps) to = put_varint(static_cast<uint32_t>(i - next), to);
    next = i + 1;
    to = put_varint(zigzag(static_cast<T>(now[i] - before[i])), to);
  });
  const auto bytes = static_cast<size_t>(to - payload.data());
  const size_t raw_bytes = now.size() * sizeof(T);
  const bool raw = bytes >= raw_bytes;
  append_header(raw ? Kind::raw : gaps ? Kind::gaps : Kind::bitmap, raw ? raw_bytes : bytes, delta);
  const auto* const from = raw ? reinterpret_cast<const std::byte*>(now.data()) : payload.data();
  delta.insert(delta.end(), from, from + (raw ? raw_bytes : bytes));
  return true;
}

absl::Status damaged() { return absl::DataLossError("a delta is damaged"); }

template <typename T>
bool apply_gaps(const std::byte* from, const std::byte* end, absl::Span<T> bits) {
  size_t next = 0;
  while (from != end) {
    uint32_t gap = 0, value = 0;
    from = take_varint(from, end, gap);
    if (from == nullptr) return false;
    from = take_varint(from, end, value);
    if (from == nullptr || gap >= bits.size() - next) return false;
    next += gap;
    bits[next] = static_cast<T>(bits[next] + unzigzag(static_cast<T>(value)));
    ++next;
  }
  return true;
}

template <typename T>
bool apply_bitmap(const std::byte* from, const std::byte* end, absl::Span<T> bits) {
  const size_t bitmap_bytes = (bits.size() + 7) / 8;
  if (static_cast<size_t>(end - from) < bitmap_bytes) return false;
  std::vector<uint64_t> bitmap((bits.size() + kElementsOfWord - 1) / kElementsOfWord);
  std::memcpy(bitmap.data(), from, bitmap_bytes);
  from += bitmap_bytes;
  if (const size_t rest = bits.size() % kElementsOfWord; rest != 0 && bitmap.back() >> rest != 0) return false;
  for_each_bit(bitmap, [&](size_t i) {
    uint32_t value = 0;
    if (from != nullptr) from = take_varint(from, end, value);
    if (from != nullptr) bits[i] = static_cast<T>(bits[i] + unzigzag(static_cast<T>(value)));
  });
  return from == end;
}

template <typename T>
bool apply(Kind kind, absl::Span<const std::byte> payload, absl::Span<std::byte> target) {
  const absl::Span<T> bits(reinterpret_cast<T*>(target.data()), target.size() / sizeof(T));
  const std::byte* const from = payload.data();
  const std::byte* const end = from + payload.size();
  switch (kind) {
    case Kind::same:
      return payload.empty();
    case Kind::gaps:
      return apply_gaps(from, end, bits);
    case Kind::bitmap:
      return apply_bitmap(from, end, bits);
    case Kind::raw:
      if (payload.size() != target.size()) return false;
      std::memcpy(target.data(), from, payload.size());
      return true;
  }
  return false;
}

}  // namespace

bool append_delta(Format format, absl::Span<const std::byte> before, absl::Span<const std::byte> now,
                  std::vector<std::byte>& delta) {
  const auto run = [&]<typename T>(T) {
    const size_t count = now.size() / sizeof(T);
    return append<T>({reinterpret_cast<const T*>(before.data()), count},
                     {reinterpret_cast<const T*>(now.data()), count}, delta);
  };
  return format == Format::bf16 ? run(uint16_t{}) : run(uint32_t{});
}

absl::Status apply_delta(Format format, absl::Span<const std::byte>& delta, absl::Span<std::byte> bits, bool& changed) {
  if (delta.size() < kChunkHeaderBytes) return damaged();
  const auto header = load_le<uint32_t>(delta.data());
  const size_t bytes = header & ((uint32_t{1} << kKindShift) - 1);
  delta.remove_prefix(kChunkHeaderBytes);
  if (bytes > delta.size()) return damaged();
  const auto kind = static_cast<Kind>(header >> kKindShift);
  const absl::Span<const std::byte> payload = delta.first(bytes);
  delta.remove_prefix(bytes);
  changed = kind != Kind::same;
  const bool good =
      format == Format::bf16 ? apply<uint16_t>(kind, payload, bits) : apply<uint32_t>(kind, payload, bits);
  return good ? absl::OkStatus() : damaged();
}

}  // namespace gradrail::publish
