#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "ps/checkpoint/file.h"

namespace gradrail::worker {

/// A TFRecord file being read record by record, every checksum verified.
/// Errors  NOT_FOUND: no such file, or no regular one. DATA_LOSS names the file, the record (from 0) and the cause: a
///         checksum, a length beyond the file's end, an end within a record.
class TfRecordReader {
 public:
  static absl::StatusOr<TfRecordReader> open(const std::string& path);

  /// False at the file's end.
  absl::StatusOr<bool> next(std::string& record);
  uint64_t index() const { return index_; }  ///< of the record that next() returns next

 private:
  explicit TfRecordReader(ps::InputFile file);
  absl::Status damaged(std::string_view what) const;

  ps::InputFile file_;
  uint64_t rest_;
  uint64_t index_ = 0;
};

/// Adds to `file` what it holds of one record.
void append_tf_record(std::string& file, std::string_view record);

/// Writes one. The file is there, whole, after commit(), and not before.
/// Errors  as ps::ReplacementFile.
class TfRecordWriter {
 public:
  static absl::StatusOr<TfRecordWriter> create(const std::string& path);

  absl::Status write(std::string_view record);
  absl::Status commit();

 private:
  explicit TfRecordWriter(ps::ReplacementFile file);
  absl::Status flush();

  ps::ReplacementFile file_;
  std::string buffer_;  ///< records are small, system calls are not
};

}  // namespace gradrail::worker
