#pragma once

#include <string>

#include "absl/status/status.h"

namespace gradrail {

enum class OutputKind {
  replaced,  ///< a new file takes the name at the end, by the name `path`.tmp until then
  in_place,  ///< the file is opened and written; it may be a pipe or a device
};

/// Checks that this process can write a file of that name later, by a file that it makes and removes: a permission
/// gives no answer for root, /proc, or a file system that is read-only. An existing file keeps its content, and no file
/// is left.
/// Errors  FAILED_PRECONDITION: the path and the cause. RESOURCE_EXHAUSTED: the disk or a quota is full.
absl::Status check_output_file(const std::string& path, OutputKind kind);

/// The same for files in a folder that exists.
absl::Status check_output_folder(const std::string& folder);

}  // namespace gradrail
