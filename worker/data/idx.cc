// An IDX file, all numbers big-endian:
//
//   | 0 | 0 | type: 0x08 = uint8 | dimensions n | n × uint32 size | elements, row-major |
#include <algorithm>
#include <limits>
#include <string_view>

#include "base/status.h"
#include "fmt/format.h"
#include "worker/data/dataset.h"
#include "worker/data/packed_file.h"

namespace gradrail::worker {
namespace {

constexpr uint8_t kTypeUint8 = 0x08;

absl::Status damaged(const std::string& path, std::string_view what) {
  return absl::DataLossError(fmt::format("{}: {}", path, what));
}

/// Reads all of `target`. `why`: the error of a file that ends before.
absl::Status read_all(PackedFile& file, absl::Span<uint8_t> target, std::string_view why) {
  GRADRAIL_ASSIGN_OR_RETURN(const size_t got, file.read(target.data(), target.size()));
  return got == target.size() ? absl::OkStatus() : damaged(file.path(), why);
}

absl::StatusOr<std::vector<uint32_t>> read_shape(PackedFile& file) {
  uint8_t magic[4];
  GRADRAIL_RETURN_IF_ERROR(read_all(file, absl::MakeSpan(magic), "not an IDX file: shorter than one"));
  if (magic[0] != 0 || magic[1] != 0) return damaged(file.path(), "not an IDX file: wrong magic number");
  if (magic[2] != kTypeUint8) {
    return damaged(file.path(), fmt::format("elements of type 0x{:02x}, only uint8 (0x08) is read", magic[2]));
  }
  if (magic[3] == 0) return damaged(file.path(), "no dimensions");
  std::vector<uint32_t> shape(magic[3]);
  for (uint32_t& size : shape) {
    uint8_t bytes[4];
    GRADRAIL_RETURN_IF_ERROR(read_all(file, absl::MakeSpan(bytes), "truncated"));
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
  GRADRAIL_ASSIGN_OR_RETURN(PackedFile file, PackedFile::open(path, "IDX file"));
  GRADRAIL_ASSIGN_OR_RETURN(std::vector<uint32_t> shape, read_shape(file));
  GRADRAIL_ASSIGN_OR_RETURN(const uint64_t count, element_count(path, shape));
  // The check precedes the allocation: the header alone must not decide how much memory is used.
  if (const uint64_t most = std::min(file.at_most(), kMaxImageBytes); count > most) {
    return damaged(path, fmt::format("truncated: claims {} elements, and holds at most {}", count, most));
  }
  IdxArray array{.shape = std::move(shape), .values = std::vector<uint8_t>(count)};
  GRADRAIL_RETURN_IF_ERROR(read_all(file, absl::MakeSpan(array.values), "truncated"));
  // A read beyond the data also makes zlib verify the checksum at the end.
  uint8_t beyond;
  GRADRAIL_ASSIGN_OR_RETURN(const size_t more, file.read(&beyond, 1));
  if (more != 0) return damaged(path, "bytes after the end");
  return array;
}

}  // namespace gradrail::worker
