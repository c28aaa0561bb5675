// One shard's checkpoint. Integers and floats are little-endian.
//
//   offset  bytes
//        0      8  magic 89 'G' 'R' 'C' 'K' 'P' 'T' 0a    not text; a conversion of line ends changes it
//        8      4  format version, 6
//       12      4  n, bytes of the fields below
//       16      8  bytes of the whole file
//       24      n  fields:  u8 optimizer, f32 learning rate, momentum, beta1, beta2, epsilon, weight decay
//                           u64 range first, count (elements of the model); u64 global step, saved (us since 1970);
//                           u64 run
//                           u32 shard index, shard count, bucket bytes
//                           u32 tensors × { u32 bytes, name; u32 rank, i64 × dimension; u32 bytes, fragment }
//                           u32 buckets × { u64 version }; u32 fragments × { u64 step }
//                           u8 whether all parameters and the state are finite
//     24+n      4  CRC32C of everything before
//     28+n         parameters, then each state vector, each cut into chunks of 1 MiB (the last one shorter):
//                  { f32 × …, u32 CRC32C }
//
// A chunk's CRC32C starts from the header's CRC32C and the chunk's number (u64): a chunk from another position or
// another file does not match.

#include "ps/checkpoint/checkpoint.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>

#include "base/check.h"
#include "base/crc32c.h"
#include "base/status.h"
#include "fmt/format.h"
#include "ps/checkpoint/header.h"
#include "ps/checkpoint/reader.h"

namespace gradrail::ps {
namespace {

static_assert(std::endian::native == std::endian::little, "numbers are written as they lie in memory");

constexpr std::array<char, 8> kMagic = {'\x89', 'G', 'R', 'C', 'K', 'P', 'T', '\n'};
// 1 MiB: the CRC and two system calls cost little beside the copy, and an error names a small part of the disk.
constexpr size_t kChunkElements = (size_t{1} << 20) / sizeof(float);
constexpr size_t kCrcBytes = sizeof(uint32_t);

struct Prologue {
  std::array<char, 8> magic = kMagic;
  uint32_t format_version = kFormatVersion;
  uint32_t field_bytes = 0;
  uint64_t file_bytes = 0;
};
static_assert(sizeof(Prologue) == 24);

uint64_t chunk_count(uint64_t elements) { return (elements + kChunkElements - 1) / kChunkElements; }

/// Cannot overflow: check_header() bounds the range by what a schema may hold.
uint64_t data_bytes(const CheckpointHeader& header) {
  const uint64_t vectors = uint64_t{1} + static_cast<uint64_t>(state_vectors(header.optimizer.kind));
  return vectors * (header.range.count * sizeof(float) + chunk_count(header.range.count) * kCrcBytes);
}

uint32_t chunk_crc(uint32_t header_crc, uint64_t chunk_index, absl::Span<const float> chunk) {
  // A seed with the position: a chunk that a disk wrote to the wrong place is found.
  const uint32_t start = crc32c(&chunk_index, sizeof(chunk_index), header_crc);
  return crc32c(chunk.data(), chunk.size() * sizeof(float), start);
}

absl::Status damaged(const std::string& path, std::string_view what) {
  return absl::DataLossError(fmt::format("checkpoint {}: {}", path, what));
}

absl::Status check_view(const std::string& path, const CheckpointView& view) {
  const auto wrong = [&](std::string_view what) {
    return absl::InvalidArgumentError(fmt::format("checkpoint {}: {}", path, what));
  };
  if (const absl::Status header = check_header(*view.header); !header.ok()) {
    return wrong(message_of(header));
  }
  const uint64_t count = view.header->range.count;
  // A wrong size is an error of this program. It is refused here, since the file would be unreadable.
  const bool sizes_agree = std::all_of(view.state.begin(), view.state.end(),
                                       [&](absl::Span<const float> state) { return state.size() == count; });
  if (view.parameters.size() != count || !sizes_agree) return wrong("a vector's length differs from the range's");
  if (view.state.size() != static_cast<size_t>(state_vectors(view.header->optimizer.kind))) {
    return wrong(
        fmt::format("{} state vectors for {}", view.state.size(), optimizer_name(view.header->optimizer.kind)));
  }
  return absl::OkStatus();
}

absl::Status write_vector(ReplacementFile& file, absl::Span<const float> values, uint32_t header_crc,
                          uint64_t& chunk_index) {
  for (size_t first = 0; first < values.size(); first += kChunkElements) {
    const absl::Span<const float> chunk = values.subspan(first, kChunkElements);
    const uint32_t crc = chunk_crc(header_crc, chunk_index++, chunk);
    GRADRAIL_RETURN_IF_ERROR(file.write(chunk.data(), chunk.size() * sizeof(float)));
    GRADRAIL_RETURN_IF_ERROR(file.write(&crc, sizeof(crc)));
  }
  return absl::OkStatus();
}

/// Checks magic, version, and that the file is long enough for the fields.
absl::StatusOr<Prologue> read_prologue(InputFile& file) {
  Prologue prologue;
  if (file.bytes() < sizeof(prologue) + kCrcBytes) {
    return damaged(file.path(), fmt::format("truncated: {} bytes are too few for a header", file.bytes()));
  }
  GRADRAIL_RETURN_IF_ERROR(file.read(&prologue, sizeof(prologue)));
  if (prologue.magic != kMagic) return damaged(file.path(), "not a gradrail checkpoint (its first 8 bytes differ)");
  if (prologue.format_version != kFormatVersion) {
    return damaged(file.path(),
                   fmt::format("format version {} where this program reads {} (use the version of gradrail "
                               "that wrote it, or another folder)",
                               prologue.format_version, kFormatVersion));
  }
  // This check precedes the allocation of this size; the subtraction is safe after the check above.
  if (prologue.field_bytes > file.bytes() - sizeof(prologue) - kCrcBytes) {
    return damaged(file.path(), fmt::format("truncated or damaged: a header of {} bytes in a file of {}",
                                            prologue.field_bytes, file.bytes()));
  }
  return prologue;
}

absl::Status check_length(const InputFile& file, const Prologue& prologue, const CheckpointHeader& header) {
  const uint64_t implied = sizeof(Prologue) + prologue.field_bytes + kCrcBytes + data_bytes(header);
  // The total is stored as well, so that a truncated file differs from contradicting fields.
  if (prologue.file_bytes != implied) {
    return damaged(file.path(), fmt::format("its sizes contradict each other: {} bytes by its header's total, {} by "
                                            "its range and optimizer",
                                            prologue.file_bytes, implied));
  }
  if (file.bytes() < implied) {
    return damaged(file.path(), fmt::format("truncated: {} of {} bytes", file.bytes(), implied));
  }
  if (file.bytes() > implied) {
    return damaged(file.path(), fmt::format("{} bytes follow its end at byte {}", file.bytes() - implied, implied));
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status write_checkpoint(const std::string& path, const CheckpointView& checkpoint) {
  GRADRAIL_RETURN_IF_ERROR(check_view(path, checkpoint));
  CheckpointHeader header = *checkpoint.header;
  const auto is_finite = [](absl::Span<const float> values) {
    return std::all_of(values.begin(), values.end(), [](float value) { return std::isfinite(value); });
  };
  header.is_finite =
      is_finite(checkpoint.parameters) && std::all_of(checkpoint.state.begin(), checkpoint.state.end(), is_finite);
  const std::string fields = encode_header(header);
  // The prologue is part of the header's CRC32C: damaged lengths are found before they are used.
  Prologue prologue;
  prologue.field_bytes = static_cast<uint32_t>(fields.size());
  prologue.file_bytes = sizeof(prologue) + fields.size() + kCrcBytes + data_bytes(*checkpoint.header);
  const uint32_t header_crc = crc32c(fields.data(), fields.size(), crc32c(&prologue, sizeof(prologue)));

  GRADRAIL_ASSIGN_OR_RETURN(ReplacementFile file, ReplacementFile::create(path, "checkpoint"));
  GRADRAIL_RETURN_IF_ERROR(file.write(&prologue, sizeof(prologue)));
  GRADRAIL_RETURN_IF_ERROR(file.write(fields.data(), fields.size()));
  GRADRAIL_RETURN_IF_ERROR(file.write(&header_crc, sizeof(header_crc)));
  uint64_t chunk_index = 0;
  GRADRAIL_RETURN_IF_ERROR(write_vector(file, checkpoint.parameters, header_crc, chunk_index));
  for (const absl::Span<const float> state : checkpoint.state) {
    GRADRAIL_RETURN_IF_ERROR(write_vector(file, state, header_crc, chunk_index));
  }
  // The reader computes the same number from the header.
  GRADRAIL_CHECK(chunk_index == chunk_count(checkpoint.header->range.count) * (1 + checkpoint.state.size()));
  return file.commit();
}

absl::StatusOr<CheckpointReader> CheckpointReader::open(const std::string& path) {
  GRADRAIL_ASSIGN_OR_RETURN(InputFile file, InputFile::open(path, "checkpoint"));
  GRADRAIL_ASSIGN_OR_RETURN(Prologue prologue, read_prologue(file));

  std::string fields(prologue.field_bytes, '\0');
  uint32_t stored_crc = 0;
  GRADRAIL_RETURN_IF_ERROR(file.read(fields.data(), fields.size()));
  GRADRAIL_RETURN_IF_ERROR(file.read(&stored_crc, sizeof(stored_crc)));
  const uint32_t crc = crc32c(fields.data(), fields.size(), crc32c(&prologue, sizeof(prologue)));
  if (crc != stored_crc) {
    return damaged(path, fmt::format("header (bytes 0 to {}): CRC32C is {:08x}, must be {:08x}",
                                     sizeof(prologue) + fields.size(), crc, stored_crc));
  }
  // After the CRC32C: a wrong field from here on is an error of the writer, not of the disk.
  absl::StatusOr<CheckpointHeader> header = decode_header(fields);
  if (!header.ok()) {
    return damaged(path, fmt::format("header: {}", std::string(header.status().message())));
  }
  GRADRAIL_RETURN_IF_ERROR(check_length(file, prologue, *header));
  return CheckpointReader(std::move(file), *std::move(header), crc);
}

CheckpointReader::CheckpointReader(InputFile file, CheckpointHeader header, uint32_t header_crc)
    : file_(std::move(file)), header_(std::move(header)), header_crc_(header_crc) {}

absl::Status CheckpointReader::read_vector(absl::Span<float> values, uint64_t& chunk_index) {
  for (size_t first = 0; first < values.size(); first += kChunkElements) {
    const absl::Span<float> chunk = values.subspan(first, kChunkElements);
    uint32_t stored_crc = 0;
    GRADRAIL_RETURN_IF_ERROR(file_.read(chunk.data(), chunk.size() * sizeof(float)));
    GRADRAIL_RETURN_IF_ERROR(file_.read(&stored_crc, sizeof(stored_crc)));
    const uint32_t crc = chunk_crc(header_crc_, chunk_index, chunk);
    if (crc != stored_crc) {
      // The damaged values are in the target already: the caller discards it.
      const uint64_t chunks_per_vector = chunk_count(header_.range.count);
      const uint64_t vector = chunk_index / chunks_per_vector;
      return damaged(path(), fmt::format("chunk {} of {} ({}, elements {} to {}): CRC32C is {:08x}, must be {:08x}",
                                         chunk_index, chunks_per_vector * (1 + state_vectors(header_.optimizer.kind)),
                                         vector == 0 ? "parameters" : fmt::format("state {}", vector - 1), first,
                                         first + chunk.size(), crc, stored_crc));
    }
    ++chunk_index;
  }
  return absl::OkStatus();
}

absl::Status CheckpointReader::read(const CheckpointTarget& target) {
  GRADRAIL_CHECK(target.parameters.size() == header_.range.count);
  GRADRAIL_CHECK(target.state.size() == static_cast<size_t>(state_vectors(header_.optimizer.kind)));
  uint64_t chunk_index = 0;
  GRADRAIL_RETURN_IF_ERROR(read_vector(target.parameters, chunk_index));
  for (const absl::Span<float> state : target.state) GRADRAIL_RETURN_IF_ERROR(read_vector(state, chunk_index));
  return absl::OkStatus();
}

absl::StatusOr<Checkpoint> read_checkpoint(const std::string& path) {
  GRADRAIL_ASSIGN_OR_RETURN(CheckpointReader reader, CheckpointReader::open(path));
  Checkpoint checkpoint;
  checkpoint.header = reader.header();
  const size_t count = checkpoint.header.range.count;  // open() has compared it with the length of the file
  checkpoint.parameters.resize(count);
  checkpoint.state.resize(static_cast<size_t>(state_vectors(checkpoint.header.optimizer.kind)));
  CheckpointTarget target = {.parameters = absl::MakeSpan(checkpoint.parameters)};
  for (std::vector<float>& state : checkpoint.state) {
    state.resize(count);
    target.state.push_back(absl::MakeSpan(state));
  }
  GRADRAIL_RETURN_IF_ERROR(reader.read(target));
  return checkpoint;
}

}  // namespace gradrail::ps
