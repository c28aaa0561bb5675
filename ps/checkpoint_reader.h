#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "ps/checkpoint.h"
#include "ps/checkpoint_file.h"

namespace gradrail::ps {

/// Where one checkpoint's numbers go.
struct CheckpointTarget {
  absl::Span<float> parameters;
  std::vector<absl::Span<float>> state;
};

/// Reads a file in two steps, so that a set of shards can be compared before room is made for all of them.
class CheckpointReader {
 public:
  /// Checks everything but the numbers: header, its CRC32C, and that the file has the length which the header implies.
  static absl::StatusOr<CheckpointReader> open(const std::string& path);

  const CheckpointHeader& header() const { return header_; }
  const std::string& path() const { return file_.path(); }

  /// Once. Spans of header().range.count elements, state_vectors() of them.
  absl::Status read(const CheckpointTarget& target);

 private:
  CheckpointReader(InputFile file, CheckpointHeader header, uint32_t header_crc);
  absl::Status read_vector(absl::Span<float> values, uint64_t& chunk_index);

  InputFile file_;
  CheckpointHeader header_;
  uint32_t header_crc_;
};

}  // namespace gradrail::ps
