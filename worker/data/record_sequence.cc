#include "worker/data/record_sequence.h"

#include <numeric>
#include <utility>

#include "base/check.h"
#include "base/status.h"
#include "fmt/format.h"
#include "worker/data/example_decoder.h"

namespace gradrail::worker {

uint64_t RecordFiles::count() const { return std::accumulate(counts.begin(), counts.end(), uint64_t{0}); }

RecordSequence::RecordSequence(RecordFiles files)
    : files_(std::move(files)), has_counts_(!files_.counts.empty()), decoder_(std::make_unique<ExampleDecoder>()) {}

RecordSequence::~RecordSequence() = default;

absl::Status RecordSequence::changed(uint64_t found) const {
  return absl::DataLossError(
      fmt::format("{}: record {}: the file had {} records at the start of this task: it must not "
                  "change while a task reads it",
                  files_.paths[file_], found, files_.counts[file_]));
}

absl::Status RecordSequence::end_file() {
  const uint64_t found = reader_->index();
  if (!has_counts_) {
    files_.counts.push_back(found);
  } else if (found != files_.counts[file_]) {
    return changed(found);
  }
  reader_.reset();
  ++file_;
  return absl::OkStatus();
}

/// False after the last record of the last file.
absl::StatusOr<bool> RecordSequence::read() {
  while (file_ < files_.paths.size()) {
    if (!reader_) {
      GRADRAIL_ASSIGN_OR_RETURN(reader_, TfRecordReader::open(files_.paths[file_]));
    }
    GRADRAIL_ASSIGN_OR_RETURN(const bool more, reader_->next(record_));
    if (more && has_counts_ && reader_->index() > files_.counts[file_]) return changed(reader_->index() - 1);
    if (more) return true;
    GRADRAIL_RETURN_IF_ERROR(end_file());
  }
  return false;
}

absl::StatusOr<std::optional<RecordSequence::Image>> RecordSequence::next() {
  GRADRAIL_ASSIGN_OR_RETURN(const bool more, read());
  if (!more) return std::nullopt;
  const auto wrong = [this](std::string_view what) {
    return absl::DataLossError(fmt::format("{}: record {}: {}", reader_->path(), reader_->index() - 1, what));
  };
  const absl::StatusOr<ExampleDecoder::Decoded> decoded = decoder_->decode(record_);
  if (!decoded.ok()) return wrong(message_of(decoded.status()));
  if (files_.pixels == 0) {
    files_.pixels = decoded->pixels.size();
    files_.size = decoded->size;
  }
  if (decoded->pixels.size() != files_.pixels)
    return wrong(fmt::format("{} pixels, those before have {}", decoded->pixels.size(), files_.pixels));
  if (decoded->size != files_.size) return wrong("its height, width and depth are not those before");
  return Image{.pixels = decoded->pixels, .label = decoded->label};
}

absl::Status RecordSequence::skip() {
  GRADRAIL_ASSIGN_OR_RETURN(const bool more, read());
  return more ? absl::OkStatus() : absl::OutOfRangeError("no further record");
}

absl::Status RecordSequence::seek(uint64_t record) {
  GRADRAIL_CHECK(has_counts_);
  reader_.reset();
  for (file_ = 0; file_ < files_.paths.size() && record >= files_.counts[file_]; ++file_)
    record -= files_.counts[file_];
  // Compressed files can only be read from their beginning.
  for (; record > 0; --record) GRADRAIL_RETURN_IF_ERROR(skip());
  return absl::OkStatus();
}

}  // namespace gradrail::worker
