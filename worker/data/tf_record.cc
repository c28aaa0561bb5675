// A TFRecord file is records one after the other, numbers little-endian:
//
//   | uint64 length | uint32 masked CRC of the length | length bytes | uint32 masked CRC of those |
//
// CRC-32C, turned by 15 bits and moved by a constant, since CRCs of data that hold CRCs are weak.
// Source   tensorflow/core/lib/io/record_writer.h (the format).
#include "worker/data/tf_record.h"

#include <bit>
#include <cstddef>
#include <cstring>
#include <utility>

#include "base/crc32c.h"
#include "base/status.h"
#include "fmt/format.h"

namespace gradrail::worker {
namespace {

static_assert(std::endian::native == std::endian::little, "the format is little-endian, and read as it lies");

struct RecordHeader {
  uint64_t length;
  uint32_t length_crc;
};
constexpr size_t kHeaderBytes = 12;  // size on disk, without the struct's padding
// Records of MNIST have less than 1 KiB: a write for each would cost a system call each.
constexpr size_t kFlushBytes = size_t{1} << 20;

uint32_t masked_crc(const void* data, size_t bytes) { return std::rotr(crc32c(data, bytes), 15) + 0xa282ead8u; }

bool is_intact(const RecordHeader& header) {
  return header.length_crc == masked_crc(&header.length, sizeof(header.length));
}

bool begins_with_record(absl::Span<const uint8_t> bytes) {
  static_assert(PackedFile::kPeekBytes == kHeaderBytes);
  if (bytes.size() < kHeaderBytes) return false;
  RecordHeader header;
  std::memcpy(&header, bytes.data(), kHeaderBytes);
  return is_intact(header);
}

}  // namespace

absl::StatusOr<TfRecordReader> TfRecordReader::open(const std::string& path) {
  // The length of a record can have the bytes of a mark of compression: its checksum decides.
  GRADRAIL_ASSIGN_OR_RETURN(PackedFile file, PackedFile::open(path, "TFRecord file", begins_with_record));
  return TfRecordReader(std::move(file));
}

absl::Status TfRecordReader::damaged(std::string_view what) const {
  return absl::DataLossError(fmt::format("{}: record {}: {}", file_.path(), index_, what));
}

/// A file may end between two records only.
absl::Status TfRecordReader::read(void* target, size_t bytes) {
  GRADRAIL_ASSIGN_OR_RETURN(const size_t got, file_.read(target, bytes));
  return got == bytes ? absl::OkStatus() : damaged("the file ends within it");
}

absl::StatusOr<bool> TfRecordReader::next(std::string& record) {
  RecordHeader header;
  GRADRAIL_ASSIGN_OR_RETURN(const size_t got, file_.read(&header, kHeaderBytes));
  if (got == 0) return false;
  if (got < kHeaderBytes) return damaged("the file ends within it");
  if (!is_intact(header)) return damaged("the checksum of its length is wrong; is this a TFRecord file?");
  // The check precedes any allocation: only the file's own size limits a length.
  if (header.length > file_.at_most()) return damaged("the file ends within it");
  record.resize(header.length);
  GRADRAIL_RETURN_IF_ERROR(read(record.data(), record.size()));
  uint32_t crc = 0;
  GRADRAIL_RETURN_IF_ERROR(read(&crc, sizeof(crc)));
  if (crc != masked_crc(record.data(), record.size())) return damaged("the checksum of its content is wrong");
  ++index_;
  return true;
}

TfRecordWriter::TfRecordWriter(ReplacementFile file) : file_(std::move(file)) {}

absl::StatusOr<TfRecordWriter> TfRecordWriter::create(const std::string& path) {
  GRADRAIL_ASSIGN_OR_RETURN(ReplacementFile file, ReplacementFile::create(path, "TFRecord file"));
  return TfRecordWriter(std::move(file));
}

void append_tf_record(std::string& file, std::string_view record) {
  const uint64_t length = record.size();
  const uint32_t length_crc = masked_crc(&length, sizeof(length));
  const uint32_t crc = masked_crc(record.data(), record.size());
  file.append(reinterpret_cast<const char*>(&length), sizeof(length));
  file.append(reinterpret_cast<const char*>(&length_crc), sizeof(length_crc));
  file.append(record);
  file.append(reinterpret_cast<const char*>(&crc), sizeof(crc));
}

absl::Status TfRecordWriter::write(std::string_view record) {
  append_tf_record(buffer_, record);
  return buffer_.size() < kFlushBytes ? absl::OkStatus() : flush();
}

absl::Status TfRecordWriter::commit() {
  GRADRAIL_RETURN_IF_ERROR(flush());
  return file_.commit();
}

absl::Status TfRecordWriter::flush() {
  GRADRAIL_RETURN_IF_ERROR(file_.write(buffer_.data(), buffer_.size()));
  buffer_.clear();
  return absl::OkStatus();
}

}  // namespace gradrail::worker
