#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "base/check.h"
#include "base/little_endian.h"

namespace gradrail::transport::common {

inline std::string_view as_text(absl::Span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}
inline absl::Span<const std::byte> as_bytes(std::string_view text) {
  return {reinterpret_cast<const std::byte*>(text.data()), text.size()};
}

/// Writes fields one behind the other, little endian. Text with a length is a u16 and the bytes.
class ByteWriter {
 public:
  explicit ByteWriter(std::string_view begin = "") : out_(begin) {}
  template <typename T>
  ByteWriter& number(T value) {
    std::byte bytes[sizeof(T)];
    store_le(bytes, value);
    out_.append(reinterpret_cast<const char*>(bytes), sizeof(T));
    return *this;
  }
  ByteWriter& raw(std::string_view bytes) {
    out_.append(bytes);
    return *this;
  }
  ByteWriter& text(std::string_view value) {
    GRADRAIL_CHECK(value.size() <= UINT16_MAX);  // the field of its length
    return number(static_cast<uint16_t>(value.size())).raw(value);
  }
  /// Appends the CRC32C of all earlier bytes.
  ByteWriter& seal();
  std::string take() { return std::move(out_); }

 private:
  std::string out_;
};

/// Reads what ByteWriter wrote. After a field that is incomplete all further fields are zero or empty.
class ByteReader {
 public:
  explicit ByteReader(std::string_view in) : in_(in) {}
  template <typename T>
  T number() {
    const std::string_view field = raw(sizeof(T));
    return field.empty() ? T{0} : load_le<T>(as_bytes(field).data());
  }
  std::string_view raw(size_t bytes);
  std::string_view text(size_t limit);
  std::string_view rest() { return raw(in_.size()); }
  bool ok() const { return ok_; }
  /// Whether all fields were complete and nothing follows the last one.
  bool complete() const { return ok_ && in_.empty(); }

 private:
  std::string_view in_;
  bool ok_ = true;
};

/// A reader of the fields between the magic and the seal of a region key of this many bytes.
/// Errors  INVALID_ARGUMENT: not a key of this transport, or damaged.
absl::StatusOr<ByteReader> open_key(std::string_view transport, std::string_view magic, size_t key_bytes,
                                    std::string_view key);

/// A peer's text for logs and terminals: each byte that is not printable becomes '?'.
std::string printable(std::string_view text);

}  // namespace gradrail::transport::common
