#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"

namespace gradrail::tools {

/// One array as NumPy sees it, in C order.
struct NumpyArray {
  std::string name;
  std::string_view type;       ///< "<f4", "<i8"
  std::vector<int64_t> shape;  ///< empty: a scalar
  absl::Span<const std::byte> bytes;
};

/// UNIMPLEMENTED: built without libzip (npz_missing.cc).
/// Asked before gigabytes are read for an export.
absl::Status check_npz();

/// Writes the file that numpy.load() reads as a dictionary of these arrays; it replaces `path` as a whole. Not
/// compressed: weights hardly shrink.
/// Errors  as check_npz(); else those of libzip, with the path.
/// Source  numpy/lib/format.py, NPY format 1.0; an .npz is a zip archive of them.
absl::Status write_npz(const std::string& path, absl::Span<const NumpyArray> arrays);

}  // namespace gradrail::tools
