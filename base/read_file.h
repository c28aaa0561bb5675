#pragma once

#include <cstddef>
#include <filesystem>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace gradrail {

enum class FileKind {
  regular,  ///< nothing else: a pipe waits for its writer, and a device may do anything
  any,      ///< also a pipe, such as the shell's <(command)
};

/// The content of a file.
/// Errors  as open() and read(): NOT_FOUND, PERMISSION_DENIED, …; INVALID_ARGUMENT: not a regular file, or longer than
///         `max_bytes`. Each message begins with the path.
absl::StatusOr<std::string> read_file(const std::string& path, size_t max_bytes, FileKind kind = FileKind::regular);

/// The first line of an attribute in /sys. "" also for a file that cannot be read, such as that of an
/// interface that is down.
std::string first_line(const std::filesystem::path& file);

/// The names in a folder, sorted, because the kernel lists /sys in no defined order. Empty without the folder.
std::vector<std::string> names_in(const std::filesystem::path& folder);

/// The folder with the file of this program; "" where /proc is missing.
std::filesystem::path program_folder();

}  // namespace gradrail
