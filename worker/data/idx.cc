// An IDX file, all numbers big-endian:
//
//   | 0 | 0 | type: 0x08 = uint8 | dimensions n | n × uint32 size | elements, row-major |
//
// gzip differs from plain by its own magic 1f 8b, which no IDX file begins with.
#include <zlib.h>

#include <algorithm>
#include <limits>
#include <string_view>

#include "base/read_file.h"
#include "base/status.h"
#include "fmt/format.h"
#include "worker/data/dataset.h"
#include "worker/data/deflate.h"

namespace gradrail::worker {
namespace {

constexpr uint8_t kTypeUint8 = 0x08;
// zlib counts in 32 bits; larger inputs are handed over in pieces of this size.
constexpr size_t kMaxPiece = size_t{1} << 30;
// The images of MNIST have 47 MB. The limit bounds the memory for a file with a hole, whose size costs nothing.
constexpr size_t kMostFileBytes = size_t{1} << 32;

absl::Status damaged(const std::string& path, std::string_view what) {
  return absl::DataLossError(fmt::format("{}: {}", path, what));
}

/// The file's content as a stream, unpacked on the way when it is gzip.
class Content {
 public:
  explicit Content(absl::Span<const uint8_t> file) : rest_(file) {
    packed_ = file.size() >= 2 && file[0] == 0x1f && file[1] == 0x8b;
    // 16: a gzip header is required and its checksum is verified.
    if (packed_ && inflateInit2(&stream_, MAX_WBITS + 16) != Z_OK) broken_ = true;
  }
  ~Content() {
    if (packed_) inflateEnd(&stream_);
  }
  Content(const Content&) = delete;
  Content& operator=(const Content&) = delete;

  bool packed() const { return packed_; }
  /// The packed data contradict themselves (as against: end too early).
  bool broken() const { return broken_; }
  /// The file ends inside its packed data.
  bool truncated() const { return packed_ && !broken_ && !member_complete_ && rest_.empty(); }

  /// Reads the content; returns the size of the filled part of `target`: less than all only at the end or if the
  /// content is damaged.
  size_t read(absl::Span<uint8_t> target) {
    if (packed_) return inflate_into(target);
    const size_t count = std::min(target.size(), rest_.size());
    std::copy_n(rest_.data(), count, target.data());
    rest_.remove_prefix(count);
    return count;
  }

  /// True when everything was read and the checksum at the end was there and right.
  bool at_end() {
    // A read beyond the data makes zlib process the trailer, which has the checksum.
    uint8_t beyond;
    if (read(absl::MakeSpan(&beyond, 1)) != 0) return false;
    return rest_.empty() && !broken_ && (!packed_ || member_complete_);
  }

 private:
  size_t inflate_into(absl::Span<uint8_t> target) {
    size_t done = 0;
    while (done < target.size() && !broken_) {
      // gzip files may be several members one after the other (parallel packers write such).
      if (member_complete_) {
        if (rest_.empty()) break;
        broken_ = inflateReset(&stream_) != Z_OK;
        member_complete_ = false;
        continue;
      }
      const size_t piece_in = std::min(rest_.size(), kMaxPiece);
      const size_t piece_out = std::min(target.size() - done, kMaxPiece);
      // zlib does not write to its input; its field is not const.
      stream_.next_in = const_cast<uint8_t*>(rest_.data());
      stream_.avail_in = static_cast<uInt>(piece_in);
      stream_.next_out = target.data() + done;
      stream_.avail_out = static_cast<uInt>(piece_out);
      const int result = inflate(&stream_, Z_NO_FLUSH);
      rest_.remove_prefix(piece_in - stream_.avail_in);
      done += piece_out - stream_.avail_out;
      if (result == Z_STREAM_END) {
        member_complete_ = true;
      } else if (result == Z_BUF_ERROR) {
        break;  // no progress possible: the file ends inside a member
      } else if (result != Z_OK) {
        broken_ = true;
      }
    }
    return done;
  }

  absl::Span<const uint8_t> rest_;
  z_stream stream_{};
  bool packed_ = false;
  bool broken_ = false;
  bool member_complete_ = false;
};

absl::Status ended_early(const std::string& path, const Content& content) {
  return damaged(path, content.broken() ? "damaged gzip data" : "truncated");
}

absl::StatusOr<std::vector<uint32_t>> read_shape(const std::string& path, Content& content) {
  uint8_t magic[4];
  if (content.read(absl::MakeSpan(magic)) != sizeof magic) {
    return content.broken() ? damaged(path, "damaged gzip data") : damaged(path, "not an IDX file: shorter than one");
  }
  if (magic[0] != 0 || magic[1] != 0) return damaged(path, "not an IDX file: wrong magic number");
  if (magic[2] != kTypeUint8) {
    return damaged(path, fmt::format("elements of type 0x{:02x}, only uint8 (0x08) is read", magic[2]));
  }
  if (magic[3] == 0) return damaged(path, "no dimensions");
  std::vector<uint32_t> shape(magic[3]);
  for (uint32_t& size : shape) {
    uint8_t bytes[4];
    if (content.read(absl::MakeSpan(bytes)) != sizeof bytes) return ended_early(path, content);
    // The sum uses shifts: the result does not depend on the byte order of this machine.
    size = uint32_t{bytes[0]} << 24 | uint32_t{bytes[1]} << 16 | uint32_t{bytes[2]} << 8 | bytes[3];
  }
  return shape;
}

absl::StatusOr<uint64_t> element_count(const std::string& path, absl::Span<const uint32_t> shape) {
  uint64_t count = 1;
  for (const uint32_t size : shape) {
    if (size != 0 && count > std::numeric_limits<uint64_t>::max() / size) {
      return damaged(path, "the product of its dimensions overflows");
    }
    count *= size;
  }
  return count;
}

}  // namespace

absl::StatusOr<IdxArray> read_idx(const std::string& path) {
  GRADRAIL_ASSIGN_OR_RETURN(const std::string file, read_file(path, kMostFileBytes));
  Content content({reinterpret_cast<const uint8_t*>(file.data()), file.size()});
  GRADRAIL_ASSIGN_OR_RETURN(std::vector<uint32_t> shape, read_shape(path, content));
  GRADRAIL_ASSIGN_OR_RETURN(const uint64_t count, element_count(path, shape));
  // The check precedes the allocation: the header alone must not decide how much memory is used.
  const uint64_t most = file.size() * (content.packed() ? kMaxDeflateRatio : 1);
  if (count > most) {
    return damaged(path, fmt::format("truncated: claims {} elements, {} bytes cannot hold them", count, file.size()));
  }

  IdxArray array{.shape = std::move(shape), .values = std::vector<uint8_t>(count)};
  if (content.read(absl::MakeSpan(array.values)) != array.values.size()) return ended_early(path, content);
  if (!content.at_end()) {
    if (content.broken()) return damaged(path, "damaged gzip data, or bytes after its end");
    return damaged(path, content.truncated() ? "truncated: its checksum is missing" : "bytes after the end");
  }
  return array;
}

}  // namespace gradrail::worker
