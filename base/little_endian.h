#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <type_traits>

namespace gradrail {

// Wire formats and files are little endian on every machine. Compilers turn these loops into one move where they can.

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

template <typename T>
T load_le(const char* from) {
  return load_le<T>(reinterpret_cast<const std::byte*>(from));
}

template <typename T>
void append_le(std::string& to, T value) {
  std::byte bytes[sizeof(T)];
  store_le(bytes, value);
  to.append(reinterpret_cast<const char*>(bytes), sizeof(T));
}

}  // namespace gradrail
