#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/types/span.h"

namespace gradrail::tools {

/// A dense array in row-major order. Numbers are little-endian.
struct NamedArray {
  enum class Type : uint8_t { float32, int64 };
  std::string name;
  Type type = Type::float32;
  std::vector<int64_t> shape;  ///< empty: a scalar
  absl::Span<const std::byte> bytes;
};

}  // namespace gradrail::tools
