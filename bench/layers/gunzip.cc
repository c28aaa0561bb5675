#include "bench/layers/gunzip.h"

#include <zlib.h>

#include <algorithm>
#include <limits>
#include <memory>

#include "base/read_file.h"
#include "base/status.h"
#include "fmt/format.h"

namespace gradrail::bench {
namespace {

constexpr size_t kPieceBytes = 1 << 20;
constexpr int kGzipOnly = MAX_WBITS + 16;

struct EndInflate {
  void operator()(z_stream* stream) const { inflateEnd(stream); }
};

}  // namespace

absl::StatusOr<std::string> read_unpacked(const std::string& file, size_t most_bytes) {
  GRADRAIL_ASSIGN_OR_RETURN(std::string content, read_file(file, most_bytes, FileKind::any));
  if (!content.starts_with("\x1f\x8b")) return content;
  absl::StatusOr<std::string> unpacked = gunzip(content, most_bytes);
  if (!unpacked.ok()) return absl::DataLossError(fmt::format("{}: {}", file, message_of(unpacked.status())));
  return unpacked;
}

absl::StatusOr<std::string> gunzip(std::string_view content, size_t most_bytes) {
  z_stream stream{};
  if (inflateInit2(&stream, kGzipOnly) != Z_OK) return absl::ResourceExhaustedError("zlib: no memory");
  const std::unique_ptr<z_stream, EndInflate> end(&stream);
  std::string text, piece(kPieceBytes, '\0');
  for (bool is_complete = false; !is_complete;) {
    const size_t taken = std::min<size_t>(content.size(), std::numeric_limits<uInt>::max());
    // zlib declares its input without const, and does not write to it.
    stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(content.data()));
    stream.avail_in = static_cast<uInt>(taken);
    stream.next_out = reinterpret_cast<Bytef*>(piece.data());
    stream.avail_out = static_cast<uInt>(piece.size());
    const int result = inflate(&stream, Z_NO_FLUSH);
    content.remove_prefix(taken - stream.avail_in);
    text.append(piece, 0, piece.size() - stream.avail_out);
    if (text.size() > most_bytes)
      return absl::ResourceExhaustedError(fmt::format("more than {} bytes after decompression", most_bytes));
    if (result == Z_STREAM_END) {
      is_complete = content.empty();
      if (!is_complete && inflateReset(&stream) != Z_OK) return absl::DataLossError("damaged gzip data");
    } else if (result == Z_BUF_ERROR) {  // no input is left, and no output is possible
      return absl::DataLossError("gzip data that ends early");
    } else if (result != Z_OK) {
      return absl::DataLossError("damaged gzip data");
    }
  }
  return text;
}

}  // namespace gradrail::bench
