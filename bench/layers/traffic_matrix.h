#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace gradrail::bench {

/// The bytes that each worker pushes to each shard in one step. As many bytes return.
/// Shapes  [workers][shards], at least 1 x 1; one entry is above 0. Entries are multiples of kTrafficUnit.
using TrafficMatrix = std::vector<std::vector<uint64_t>>;

/// Entries are rounded up to whole blocks of a push format: fragments begin there (ps::Layout).
inline constexpr uint64_t kTrafficUnit = 256;

/// A file with a line for each worker and a column for each shard. Commas or spaces separate the numbers of bytes.
/// K, M, G may follow a number. # begins a comment.
/// Errors  Those of the file. DATA_LOSS: names file, row and column.
absl::StatusOr<TrafficMatrix> read_traffic_matrix(const std::string& file);

/// A part of a shard. The workers with more bytes for this shard than `first` push it.
/// Units  bytes.
struct TrafficPiece {
  uint32_t shard = 0;
  uint64_t first = 0;  ///< bytes of the pieces before it in its shard
  uint64_t bytes = 0;
  bool operator==(const TrafficPiece&) const = default;
};

/// The fragments of a model that carries the matrix, shard by shard. All shards have the size of the largest entry. An
/// even cut of the model then gives each shard its own pieces.
std::vector<TrafficPiece> pieces_of(const TrafficMatrix& matrix);

}  // namespace gradrail::bench
