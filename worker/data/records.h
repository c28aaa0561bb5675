#pragma once

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "worker/data/dataset.h"

namespace gradrail::worker {

// Images as TensorFlow's tutorials keep them: TFRecord files `train.tfrecords`, `validation.tfrecords` and
// `test.tfrecords`, in each record a tf.train.Example with `image_raw` (bytes, the pixels) and `label` (int64). Instead
// of a file there may be its shards `train.tfrecords-00000-of-00002` …. Each file may be compressed by gzip or zlib.

bool holds_records(const std::string& folder);

/// Reads and verifies `train` and `test`; the split `validation` is empty. Both stay in memory.
/// Errors  Those of TfRecordReader. DATA_LOSS names file, record and cause: a missing or wrong feature, a label other
///         than 0 to 9, or images of different sizes. `height`, `width` and `depth` must be the size of the image. A
///         missing shard is also DATA_LOSS. NOT_FOUND: no file of a split. INVALID_ARGUMENT: the images of a split have
///         more than `max_bytes`.
absl::StatusOr<MnistData> load_records(const std::string& folder, uint64_t max_bytes = kMaxImageBytes);

/// Writes them, with `height`, `width` and `depth` beside, as the tutorial's converter does. Each file is whole or not
/// there; the folder is made where it is missing.
/// Errors  INVALID_ARGUMENT: the number of pixels is not a square. Otherwise those of TfRecordWriter.
absl::Status write_records(const MnistData& data, const std::string& folder);

}  // namespace gradrail::worker
