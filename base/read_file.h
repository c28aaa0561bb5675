#pragma once

#include <sys/types.h>

#include <chrono>
#include <cstddef>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "base/file_descriptor.h"
#include "gradrail/clock.h"

namespace gradrail {

// All files whose names users supply are opened here. A pipe waits for the other end, and a device may do anything.

enum class FileKind {
  regular,  ///< nothing else
  any,      ///< pipes, such as the shell's <(command), and devices too
};

/// Time for the writer of a pipe, which may prompt a person for a password.
constexpr Duration kPipeTimeout = std::chrono::seconds(30);

/// OK if `path` is a regular file or a link to one.
/// Errors  NOT_FOUND: nothing has this name. FAILED_PRECONDITION: a link to a path that is not there; names it.
///         INVALID_ARGUMENT: a folder, a pipe, a socket or a device. Otherwise that of stat(). Each message begins with
///         the path.
absl::Status check_regular_file(const std::string& path);

/// Opens a regular file. Never waits, and opens no device. `flags` and `mode` are those of open().
/// Errors  Those of check_regular_file() and open(). Each message begins with the path.
absl::StatusOr<FileDescriptor> open_regular_file(const std::string& path, int flags, mode_t mode = 0);

/// Opens a file to read it with read_input(). Does not wait for the writer of a pipe.
/// Errors  Those of open_regular_file().
absl::StatusOr<FileDescriptor> open_input(const std::string& path, FileKind kind);

/// Reads to the end, but no more than `max_bytes`. `path` begins the messages.
/// Errors  DEADLINE_EXCEEDED: the writers of a pipe have not closed it within `timeout`. CANCELLED: this process
///         received a signal to end. Those of read().
absl::StatusOr<std::string> read_input(const FileDescriptor& file, const std::string& path, size_t max_bytes,
                                       Duration timeout = kPipeTimeout);

/// Stops all waits for pipes in read_input(): this process received a signal to end, and the signal is not pending.
/// Threads  Any.
void end_pipe_waits();

/// The content of a file.
/// Errors  Those of open_input() and read_input(). INVALID_ARGUMENT: it is longer than `max_bytes`.
absl::StatusOr<std::string> read_file(const std::string& path, size_t max_bytes, FileKind kind = FileKind::regular);

enum class WriteMode { replace, append };
/// Writes a result for the user. The file may be a pipe that another process reads, or a device such as /dev/stdout.
/// Errors  Those of open() and write(). DEADLINE_EXCEEDED: the reader of a pipe takes nothing for `timeout`. Each
///         message begins with the path.
absl::Status write_file(const std::string& path, std::string_view text, WriteMode mode,
                        Duration timeout = kPipeTimeout);

/// The first line of an attribute in /sys. "" also for a file that cannot be read, such as that of an
/// interface that is down.
std::string first_line(const std::filesystem::path& file);

/// The names in a folder, sorted, because the kernel lists /sys in no defined order. Empty without the folder.
std::vector<std::string> names_in(const std::filesystem::path& folder);

/// The folder with the file of this program; "" where /proc is missing.
std::filesystem::path program_folder();

}  // namespace gradrail
