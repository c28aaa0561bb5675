#include "bench/layers/traffic_matrix.h"

#include <algorithm>
#include <optional>
#include <set>
#include <string_view>

#include "absl/strings/ascii.h"
#include "absl/strings/str_split.h"
#include "base/read_file.h"
#include "base/status.h"
#include "bench/driver/harness.h"
#include "fmt/format.h"

namespace gradrail::bench {
namespace {

constexpr size_t kMaxMatrixBytes = size_t{16} << 20;
/// The largest entry. Larger numbers are a mistake in the unit, and the sum of all stays below 2^63.
constexpr uint64_t kMostBytes = uint64_t{1} << 40;
constexpr size_t kMostRowsOrColumns = 4096;

std::vector<std::string> cells_of(const std::string& line) {
  if (line.find(',') == std::string::npos) return absl::StrSplit(line, absl::ByAnyChar(" \t"), absl::SkipEmpty());
  std::vector<std::string> cells = absl::StrSplit(line, ',');
  for (std::string& cell : cells) absl::StripAsciiWhitespace(&cell);
  return cells;
}

std::optional<uint64_t> entry_of(const std::string& cell) {
  if (cell == "0") return 0;
  const uint64_t bytes = parse_size(cell);
  if (bytes == 0 || bytes > kMostBytes) return std::nullopt;
  return (bytes + kTrafficUnit - 1) / kTrafficUnit * kTrafficUnit;
}

absl::StatusOr<std::vector<uint64_t>> row_of(const std::vector<std::string>& cells) {
  std::vector<uint64_t> row;
  for (const std::string& cell : cells) {
    const std::optional<uint64_t> bytes = entry_of(cell);
    if (!bytes) {
      return absl::DataLossError(fmt::format("column {}: '{}' is no number of bytes from 0 to {} (K, M, G may follow)",
                                             row.size() + 1, escaped(cell.substr(0, 40)), kMostBytes));
    }
    row.push_back(*bytes);
  }
  return row;
}

absl::StatusOr<TrafficMatrix> matrix_of(const std::string& content) {
  TrafficMatrix matrix;
  size_t number = 0;
  for (const absl::string_view piece : absl::StrSplit(content, '\n')) {
    ++number;
    std::string line(piece.substr(0, piece.find('#')));
    absl::StripAsciiWhitespace(&line);
    if (line.empty()) continue;
    const std::vector<std::string> cells = cells_of(line);
    if (!std::all_of(line.begin(), line.end(), [](unsigned char c) { return absl::ascii_isprint(c) || c == '\t'; }))
      return absl::DataLossError(
          fmt::format("line {} has bytes that are no text: a matrix is a table of numbers", number));
    const std::string where = fmt::format("row {} (line {})", matrix.size() + 1, number);
    absl::StatusOr<std::vector<uint64_t>> row = row_of(cells);
    if (!row.ok()) return absl::DataLossError(fmt::format("{}, {}", where, message_of(row.status())));
    if (!matrix.empty() && row->size() != matrix.front().size()) {
      return absl::DataLossError(fmt::format("{} has {} column{}, and row 1 has {}", where, row->size(),
                                             row->size() == 1 ? "" : "s", matrix.front().size()));
    }
    if (matrix.size() == kMostRowsOrColumns || row->size() > kMostRowsOrColumns)
      return absl::DataLossError(fmt::format("{}: more than {} rows or columns", where, kMostRowsOrColumns));
    matrix.push_back(*std::move(row));
  }
  if (matrix.empty()) return absl::DataLossError("no row of numbers: a row for each worker, a column for each shard");
  const bool has_traffic = std::any_of(matrix.begin(), matrix.end(), [](const std::vector<uint64_t>& row) {
    return std::any_of(row.begin(), row.end(), [](uint64_t bytes) { return bytes > 0; });
  });
  if (!has_traffic) return absl::DataLossError("all entries are 0");
  return matrix;
}

}  // namespace

absl::StatusOr<TrafficMatrix> read_traffic_matrix(const std::string& file) {
  GRADRAIL_ASSIGN_OR_RETURN(const std::string content, read_file(file, kMaxMatrixBytes, FileKind::any));
  absl::StatusOr<TrafficMatrix> matrix = matrix_of(content);
  if (!matrix.ok()) return absl::DataLossError(fmt::format("{}: {}", file, message_of(matrix.status())));
  return matrix;
}

std::vector<TrafficPiece> pieces_of(const TrafficMatrix& matrix) {
  uint64_t largest = 0;
  for (const std::vector<uint64_t>& row : matrix)
    for (const uint64_t bytes : row) largest = std::max(largest, bytes);
  std::vector<TrafficPiece> pieces;
  for (uint32_t shard = 0; shard < matrix.front().size(); ++shard) {
    // The last piece of a shard without an entry of this size is pushed by no worker.
    std::set<uint64_t> ends = {largest};
    for (const std::vector<uint64_t>& row : matrix)
      if (row[shard] > 0) ends.insert(row[shard]);
    uint64_t first = 0;
    for (const uint64_t end : ends) {
      pieces.push_back({.shard = shard, .first = first, .bytes = end - first});
      first = end;
    }
  }
  return pieces;
}

}  // namespace gradrail::bench
