#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"

namespace gradrail::bench {

/// The content of a file of any kind (base/read_file.h), unpacked if gzip has written it.
/// Errors  those of read_file(); DATA_LOSS as below, with the name of the file.
absl::StatusOr<std::string> read_unpacked(const std::string& file, size_t most_bytes);

/// The unpacked content of a file that gzip has written. It may have several members, one after the other.
/// Errors  DATA_LOSS: damaged, or it ends early. RESOURCE_EXHAUSTED: it has more than `most_bytes`.
/// Source  RFC 1952.
absl::StatusOr<std::string> gunzip(std::string_view content, size_t most_bytes);

}  // namespace gradrail::bench
