#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "worker/data/dataset.h"
#include "worker/data/tf_record.h"

namespace gradrail::worker {

class ExampleDecoder;

/// The TFRecord files of one split, in the order of their records. The first pass finds all but the paths.
struct RecordFiles {
  std::vector<std::string> paths;
  std::vector<uint64_t> counts;  ///< records by file; empty: unknown
  size_t pixels = 0;             ///< number in each image
  ImageSize size = {};           ///< size of each image

  uint64_t count() const;
};

/// Reads the images of a split one after another, every checksum verified.
/// Errors  Those of TfRecordReader and ExampleDecoder. DATA_LOSS names file, record and cause. Further causes are an image
///         of another size than those before, and a file with another number of records than in `counts`.
/// Threads  One owner.
class RecordSequence {
 public:
  explicit RecordSequence(RecordFiles files);
  ~RecordSequence();

  struct Image {
    absl::Span<const uint8_t> pixels;  ///< valid until the next call
    uint8_t label = 0;
  };
  /// Returns nothing after the last image.
  absl::StatusOr<std::optional<Image>> next();
  /// Passes over one record without decoding it. Errors  OUT_OF_RANGE: there is none.
  absl::Status skip();
  /// The next image is `record`, counted from 0 over all files. Needs the counts.
  absl::Status seek(uint64_t record);

  /// Files with counts and sizes, after the end of a first pass.
  const RecordFiles& files() const { return files_; }

 private:
  absl::StatusOr<bool> read();
  absl::Status end_file();
  absl::Status changed(uint64_t found) const;

  RecordFiles files_;
  const bool has_counts_;
  std::unique_ptr<ExampleDecoder> decoder_;
  size_t file_ = 0;                       ///< file that reader_ reads
  std::optional<TfRecordReader> reader_;  ///< empty: the file is not open yet
  std::string record_;
};

}  // namespace gradrail::worker
