#include "worker/data/packed_file.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/status.h"
#include "fmt/format.h"

namespace gradrail::worker {
namespace {

// Records of MNIST have less than 1 KiB: a read for each would cost a system call each.
constexpr size_t kBufferBytes = size_t{256} << 10;
constexpr int kGzipOrZlib = MAX_WBITS + 32;

/// RFC 1952: 1f 8b. RFC 1950: method 8 in the low half of the first byte, and both bytes a multiple of 31.
bool has_mark_of_compression(absl::Span<const uint8_t> bytes) {
  if (bytes.size() < 2) return false;
  if (bytes[0] == 0x1f && bytes[1] == 0x8b) return true;
  return (bytes[0] & 0x0f) == 8 && (bytes[0] * 256 + bytes[1]) % 31 == 0;
}

}  // namespace

void PackedFile::EndInflate::operator()(z_stream* stream) const {
  inflateEnd(stream);
  delete stream;
}

PackedFile::PackedFile(InputFile file)
    : file_(std::move(file)), file_rest_(file_.bytes()), buffer_(std::min<uint64_t>(kBufferBytes, file_rest_)) {}

absl::StatusOr<PackedFile> PackedFile::open(const std::string& path, std::string_view kind,
                                            bool (*begins_unpacked)(absl::Span<const uint8_t>)) {
  GRADRAIL_ASSIGN_OR_RETURN(InputFile file, InputFile::open(path, kind));
  PackedFile packed(std::move(file));
  GRADRAIL_RETURN_IF_ERROR(packed.fill());
  const absl::Span<const uint8_t> first = absl::MakeConstSpan(packed.buffer_).first(std::min(packed.end_, kPeekBytes));
  const bool is_plain = begins_unpacked != nullptr && begins_unpacked(first);
  if (!is_plain && has_mark_of_compression(first)) GRADRAIL_RETURN_IF_ERROR(packed.start_inflate());
  return packed;
}

absl::Status PackedFile::damaged(const char* what) const {
  return absl::DataLossError(fmt::format("{}: {}", path(), what));
}

absl::Status PackedFile::fill() {
  begin_ = 0;
  end_ = std::min<uint64_t>(buffer_.size(), file_rest_);
  file_rest_ -= end_;
  return file_.read(buffer_.data(), end_);
}

absl::Status PackedFile::start_inflate() {
  auto stream = std::make_unique<z_stream>();
  if (inflateInit2(stream.get(), kGzipOrZlib) != Z_OK) return absl::ResourceExhaustedError("zlib: no memory");
  inflate_.reset(stream.release());
  return absl::OkStatus();
}

uint64_t PackedFile::at_most() const {
  if (inflate_ == nullptr) return end_ - begin_ + file_rest_;
  return file_.bytes() * kMaxDeflateRatio;
}

absl::StatusOr<size_t> PackedFile::read(void* target, size_t bytes) {
  auto* position = static_cast<uint8_t*>(target);
  if (inflate_ != nullptr) return inflate_into(position, bytes);
  size_t done = 0;
  while (done < bytes) {
    if (begin_ == end_) GRADRAIL_RETURN_IF_ERROR(fill());
    const size_t piece = std::min(bytes - done, end_ - begin_);
    if (piece == 0) break;
    std::memcpy(position + done, buffer_.data() + begin_, piece);
    begin_ += piece;
    done += piece;
  }
  return done;
}

absl::StatusOr<size_t> PackedFile::inflate_into(uint8_t* target, size_t bytes) {
  // zlib counts in 32 bits.
  constexpr size_t kMaxPiece = size_t{1} << 30;
  size_t done = 0;
  while (done < bytes) {
    if (begin_ == end_) GRADRAIL_RETURN_IF_ERROR(fill());
    const size_t input = end_ - begin_;
    if (member_complete_) {
      if (input == 0) break;
      // gzip files may be several members one after the other: parallel packers write such.
      if (inflateReset(inflate_.get()) != Z_OK) return damaged("damaged compressed data");
      member_complete_ = false;
    }
    if (input == 0) return damaged("the file ends within its compressed data");
    const size_t output = std::min(bytes - done, kMaxPiece);
    inflate_->next_in = buffer_.data() + begin_;
    inflate_->avail_in = static_cast<uInt>(input);
    inflate_->next_out = target + done;
    inflate_->avail_out = static_cast<uInt>(output);
    const int result = inflate(inflate_.get(), Z_NO_FLUSH);
    begin_ += input - inflate_->avail_in;
    done += output - inflate_->avail_out;
    if (result != Z_OK && result != Z_STREAM_END && result != Z_BUF_ERROR) return damaged("damaged compressed data");
    member_complete_ = result == Z_STREAM_END;
  }
  return done;
}

}  // namespace gradrail::worker
