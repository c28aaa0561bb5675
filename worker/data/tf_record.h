#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/file.h"
#include "worker/data/packed_file.h"

namespace gradrail::worker {

/// A TFRecord file being read record by record, every checksum verified. It may be compressed by gzip or zlib.
/// Errors  Those of PackedFile. DATA_LOSS names the file, the record (from 0) and the cause. Causes are a checksum, a
///         length beyond the end of the file, and an end within a record.
class TfRecordReader {
 public:
  static absl::StatusOr<TfRecordReader> open(const std::string& path);

  /// False at the file's end.
  absl::StatusOr<bool> next(std::string& record);
  uint64_t index() const { return index_; }  ///< index of the record that next() returns next
  const std::string& path() const { return file_.path(); }

 private:
  explicit TfRecordReader(PackedFile file) : file_(std::move(file)) {}
  absl::Status damaged(std::string_view what) const;

  absl::Status read(void* target, size_t bytes);

  PackedFile file_;
  uint64_t index_ = 0;
};

/// Adds to `file` what it holds of one record.
void append_tf_record(std::string& file, std::string_view record);

/// Writes one. The file is there, whole, after commit(), and not before.
/// Errors  Those of ReplacementFile.
class TfRecordWriter {
 public:
  static absl::StatusOr<TfRecordWriter> create(const std::string& path);

  absl::Status write(std::string_view record);
  absl::Status commit();

 private:
  explicit TfRecordWriter(ReplacementFile file);
  absl::Status flush();

  ReplacementFile file_;
  std::string buffer_;  ///< records are small, system calls are not
};

}  // namespace gradrail::worker
