#include "transport/common/byte_codec.h"

#include <algorithm>

#include "base/crc32c.h"
#include "fmt/format.h"

namespace gradrail::transport::common {

ByteWriter& ByteWriter::seal() { return number(crc32c(out_.data(), out_.size())); }

std::string_view ByteReader::raw(size_t bytes) {
  // The first incomplete field makes all later ones empty, so a caller checks once, after the last.
  ok_ = ok_ && bytes <= in_.size();
  if (!ok_) return {};
  const std::string_view field = in_.substr(0, bytes);
  in_.remove_prefix(bytes);
  return field;
}

std::string_view ByteReader::text(size_t limit) {
  // A peer chooses this length; the limit is that of the field.
  const size_t bytes = number<uint16_t>();
  ok_ = ok_ && bytes <= limit;
  return raw(bytes);
}

absl::StatusOr<ByteReader> open_key(std::string_view transport, std::string_view magic, size_t key_bytes,
                                    std::string_view key) {
  // All keys of a transport have one size: the fields of a key that passes are complete without further checks.
  if (key.size() != key_bytes || key.substr(0, magic.size()) != magic) {
    return absl::InvalidArgumentError(fmt::format("{}: not a region key of {}", transport, transport));
  }
  const std::string_view sealed = key.substr(0, key_bytes - sizeof(uint32_t));
  if (ByteReader(key.substr(sealed.size())).number<uint32_t>() != crc32c(sealed.data(), sealed.size())) {
    return absl::InvalidArgumentError(fmt::format("{}: damaged region key", transport));
  }
  return ByteReader(sealed.substr(magic.size()));
}

std::string printable(std::string_view text) {
  std::string shown(text);
  std::replace_if(
      // Bytes from 0x80 on are below ' ' where char is signed; elsewhere they are above '~'.
      shown.begin(), shown.end(), [](char c) { return c < ' ' || c > '~'; }, '?');
  return shown;
}

}  // namespace gradrail::transport::common
