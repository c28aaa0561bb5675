#pragma once

#include <zlib.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "base/file.h"

namespace gradrail::worker {

/// Deflate cannot pack tighter than this (zlib's technical notes), which bounds what a file may claim to hold.
constexpr uint64_t kMaxDeflateRatio = 1032;

/// The bytes of a file, unpacked on the way if it has the mark of gzip or zlib.
/// Errors  Those of InputFile. DATA_LOSS: damaged compressed data, or an end within them.
class PackedFile {
 public:
  /// `kind` is the word before the path in the errors of InputFile. `begins_unpacked` examines the first bytes of the
  /// file, at most kPeekBytes. It returns true where they are no mark, although they look like one; null: no such file.
  static constexpr size_t kPeekBytes = 12;
  static absl::StatusOr<PackedFile> open(const std::string& path, std::string_view kind,
                                         bool (*begins_unpacked)(absl::Span<const uint8_t>) = nullptr);

  const std::string& path() const { return file_.path(); }
  /// No more bytes than these can follow: an allocation needs a bound.
  uint64_t at_most() const;
  /// Returns how many of `bytes` were there; less only at the end.
  absl::StatusOr<size_t> read(void* target, size_t bytes);

 private:
  struct EndInflate {
    void operator()(z_stream* stream) const;
  };

  explicit PackedFile(InputFile file);
  absl::Status fill();
  absl::Status start_inflate();
  absl::StatusOr<size_t> inflate_into(uint8_t* target, size_t bytes);
  absl::Status damaged(const char* what) const;

  InputFile file_;
  uint64_t file_rest_;  ///< bytes of the file behind the buffer
  std::vector<uint8_t> buffer_;
  size_t begin_ = 0, end_ = 0;                     ///< range of the unread bytes in the buffer
  std::unique_ptr<z_stream, EndInflate> inflate_;  ///< null: the file has no compression
  bool member_complete_ = false;                   ///< its checksum was read, and was right
};

}  // namespace gradrail::worker
