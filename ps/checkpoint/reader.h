#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "base/file.h"
#include "ps/checkpoint/checkpoint.h"

namespace gradrail::ps {

/// Memory for the values of one checkpoint.
struct CheckpointTarget {
  absl::Span<float> parameters;
  std::vector<absl::Span<float>> state;
};

/// Reads a file in two steps, so that the headers of a set can be compared before memory is allocated for all values.
class CheckpointReader {
 public:
  /// Checks the header, its CRC32C, and that the length of the file is the one that the header implies.
  /// Errors  As read_checkpoint().
  static absl::StatusOr<CheckpointReader> open(const std::string& path);

  const CheckpointHeader& header() const { return header_; }
  const std::string& path() const { return file_.path(); }

  /// Reads the values; to be called once.
  /// Shapes  parameters and each of the state_vectors() state spans: [header().range.count].
  absl::Status read(const CheckpointTarget& target);

 private:
  CheckpointReader(InputFile file, CheckpointHeader header, uint32_t header_crc);
  absl::Status read_vector(absl::Span<float> values, uint64_t& chunk_index);

  InputFile file_;
  CheckpointHeader header_;
  uint32_t header_crc_;
};

}  // namespace gradrail::ps
