#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "tools/gradrail/named_array.h"

namespace gradrail::tools {

/// UNIMPLEMENTED: built without libzip (npz_missing.cc).
/// Asked before gigabytes are read for an export.
absl::Status check_npz();

/// Writes the file that numpy.load() reads as a dictionary of these arrays; it replaces `path` as a whole. Not
/// compressed: weights hardly shrink.
/// Errors  as check_npz(); else those of libzip, with the path.
/// Source  numpy/lib/format.py, NPY format 1.0; an .npz is a zip archive of them.
absl::Status write_npz(const std::string& path, absl::Span<const NamedArray> arrays);

}  // namespace gradrail::tools
