#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace gradrail::ps {

/// A file being read from its beginning.
/// Errors  name the path, the failing call and errno's words; NOT_FOUND when there is no such file.
class InputFile {
 public:
  static absl::StatusOr<InputFile> open(const std::string& path);
  InputFile(InputFile&& other) noexcept;
  InputFile& operator=(InputFile&& other) = delete;
  ~InputFile();

  const std::string& path() const { return path_; }
  uint64_t bytes() const { return bytes_; }  ///< when it was opened
  /// DATA_LOSS when the file ends first.
  absl::Status read(void* data, size_t bytes);

 private:
  InputFile(std::string path, int descriptor, uint64_t bytes);
  std::string path_;
  int descriptor_;
  uint64_t bytes_;
};

/// A file that replaces `path` as a whole or not at all. Until commit() it is `path`.tmp; the destructor removes that.
/// Errors  name the path, the failing call and errno's words; RESOURCE_EXHAUSTED for a full disk, quota or file limit.
class ReplacementFile {
 public:
  static absl::StatusOr<ReplacementFile> create(const std::string& path);
  ReplacementFile(ReplacementFile&& other) noexcept;
  ReplacementFile& operator=(ReplacementFile&& other) = delete;
  ~ReplacementFile();

  absl::Status write(const void* data, size_t bytes);
  /// Bytes to disk, name to new bytes, name to disk. After an error the old file may or may not have been replaced by
  /// the whole new one.
  absl::Status commit();

 private:
  ReplacementFile(std::string path, int descriptor);
  std::string path_;
  std::string temporary_path_;
  int descriptor_;
};

}  // namespace gradrail::ps
