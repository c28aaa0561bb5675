#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace gradrail {

/// The bytes of the character at the begin of a text. 0: the text is empty, or an ill-formed, overlong or surrogate
/// sequence. Names of files can hold any bytes.
/// Source  RFC 3629.
inline size_t utf8_character_bytes(std::string_view text) {
  if (text.empty()) return 0;
  const auto lead = static_cast<unsigned char>(text[0]);
  // C0 and C1 would begin overlong sequences of two bytes; F5 and above are beyond U+10FFFF.
  const size_t length = lead < 0x80 ? 1 : lead < 0xC2 ? 0 : lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : lead < 0xF5 ? 4 : 0;
  if (length == 0 || length > text.size()) return 0;
  uint32_t code = length == 1 ? lead : lead & (0x7F >> length);
  for (size_t k = 1; k < length; ++k) {
    const auto next = static_cast<unsigned char>(text[k]);
    if ((next & 0xC0) != 0x80) return 0;
    code = code << 6 | (next & 0x3F);
  }
  const uint32_t smallest = length == 3 ? 0x800 : length == 4 ? 0x10000 : 0;
  return code < smallest || code > 0x10FFFF || (code >= 0xD800 && code < 0xE000) ? 0 : length;
}

}  // namespace gradrail
