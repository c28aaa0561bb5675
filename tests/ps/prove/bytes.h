#pragma once

#include <cstdint>
#include <string>

namespace gradrail::ps::prove {

/// A state as bytes. Equal states have equal bytes.
class Bytes {
 public:
  void put(uint64_t value) {
    constexpr uint64_t kLong = 0xff;
    if (value < kLong) return text_.push_back(static_cast<char>(value));
    text_.push_back(static_cast<char>(kLong));
    for (int shift = 0; shift < 64; shift += 8) text_.push_back(static_cast<char>(value >> shift));
  }
  /// The length first: two lists never look like one.
  void put(const Bytes& other) {
    put(other.text_.size());
    text_ += other.text_;
  }
  void clear() { text_.clear(); }
  const std::string& text() const { return text_; }
  bool operator<(const Bytes& other) const { return text_ < other.text_; }

 private:
  std::string text_;
};

/// 128 bits: with 10^8 states, two of them are mixed up with a probability below 10^-22.
struct Fingerprint {
  uint64_t low = 0;
  uint64_t high = 0;
  bool operator==(const Fingerprint&) const = default;
};

Fingerprint fingerprint_of(const Bytes& bytes);

}  // namespace gradrail::ps::prove
