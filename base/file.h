#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/file_descriptor.h"

namespace gradrail {

/// A file that is read from its beginning. `kind` is the word before the path in its errors.
/// Errors  As open_regular_file(); that of a call names the path and the call.
class InputFile {
 public:
  static absl::StatusOr<InputFile> open(const std::string& path, std::string_view kind);

  const std::string& path() const { return path_; }
  uint64_t bytes() const { return bytes_; }  ///< size at open()
  /// Errors  DATA_LOSS: the file ends before.
  absl::Status read(void* data, size_t bytes);

 private:
  InputFile(std::string path, std::string_view kind, FileDescriptor descriptor, uint64_t bytes);
  std::string path_;
  std::string kind_;
  FileDescriptor descriptor_;
  uint64_t bytes_;
};

/// A file that replaces `path` as a whole or leaves it unchanged. Until commit() its name is `path`.tmp; the destructor
/// removes it. `kind` is the word before the path in its errors.
/// Errors  Name the path, the failing call and errno's text. RESOURCE_EXHAUSTED: full disk, quota or file limit.
///         INVALID_ARGUMENT: the name has a folder, a pipe or a device.
class ReplacementFile {
 public:
  static absl::StatusOr<ReplacementFile> create(const std::string& path, std::string_view kind);
  ReplacementFile(ReplacementFile&& other) noexcept;
  ReplacementFile& operator=(ReplacementFile&& other) = delete;
  ~ReplacementFile();

  absl::Status write(const void* data, size_t bytes);
  /// Syncs the bytes, renames the file, syncs the folder. After an error the name holds the old file or the whole new
  /// one.
  absl::Status commit();

 private:
  ReplacementFile(std::string path, std::string_view kind, FileDescriptor descriptor);
  std::string path_;
  std::string kind_;
  std::string temporary_path_;
  FileDescriptor descriptor_;
};

}  // namespace gradrail
