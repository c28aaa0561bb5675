#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <type_traits>

namespace gradrail {

// Wire formats and files are little endian, as every supported host is: the bytes are those of the number.
static_assert(std::endian::native == std::endian::little, "headers of exchanges are read as structures");

template <typename T>
void store_le(std::byte* to, T value) {
  static_assert(std::is_unsigned_v<T>);
  std::memcpy(to, &value, sizeof(T));
}

template <typename T>
T load_le(const std::byte* from) {
  static_assert(std::is_unsigned_v<T>);
  T value;
  std::memcpy(&value, from, sizeof(T));
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
