#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>

namespace gradrail::transport::common {

/// The wire and the keys are little endian on every machine; compilers turn these loops into one move where they can.
template <typename T>
void store_le(std::byte* to, T value) {
  static_assert(std::is_unsigned_v<T>);
  for (size_t i = 0; i < sizeof(T); ++i) to[i] = static_cast<std::byte>(value >> (8 * i));
}

template <typename T>
T load_le(const std::byte* from) {
  static_assert(std::is_unsigned_v<T>);
  T value = 0;
  for (size_t i = 0; i < sizeof(T); ++i) value |= static_cast<T>(static_cast<T>(from[i]) << (8 * i));
  return value;
}

}  // namespace gradrail::transport::common
