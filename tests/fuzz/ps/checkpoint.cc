// A checkpoint file. The first byte of an input selects its use:
//
//   0  the file
//   1  fields and values of a file, which must be accepted if its fields are valid
//   2  as 1, with one other byte: the file must be refused
#include "ps/checkpoint/checkpoint.h"

#include <algorithm>
#include <string>

#include "base/check.h"
#include "base/crc32c.h"
#include "base/little_endian.h"
#include "base/status.h"
#include "ps/checkpoint/header.h"
#include "tests/fuzz/fuzz.h"
#include "transport/common/byte_codec.h"

namespace gradrail::ps {
namespace {

constexpr uint64_t kMaxElements = 256;

/// A file with right lengths and checksums. "": the fields are not valid, or have a large range.
std::string whole_file(std::string_view fields, std::string_view values) {
  const absl::StatusOr<CheckpointHeader> header = decode_header(fields);
  if (!header.ok()) {
    GRADRAIL_CHECK(absl::IsInvalidArgument(header.status()) && !header.status().message().empty());
    return "";
  }
  GRADRAIL_CHECK(check_header(*header).ok());
  GRADRAIL_CHECK(encode_header(*header) == fields);
  uint64_t elements = 0;
  for (const Tensor& tensor : header->schema) elements += tensor.elements();
  GRADRAIL_CHECK(header->range.first <= elements && header->range.count <= elements - header->range.first);
  if (header->range.count > kMaxElements) return "";
  const size_t vector_bytes = header->range.count * sizeof(float);
  const size_t vectors = 1 + static_cast<size_t>(state_vectors(header->optimizer.kind));
  std::string file = "\x89GRCKPT\n";
  append_le(file, kFormatVersion);
  append_le(file, static_cast<uint32_t>(fields.size()));
  append_le(file, uint64_t{24 + fields.size() + 4 + vectors * (vector_bytes + (vector_bytes > 0 ? 4 : 0))});
  file += fields;
  const uint32_t header_crc = crc32c(file.data(), file.size());
  append_le(file, header_crc);
  for (uint64_t i = 0; i < vectors && vector_bytes > 0; ++i) {
    std::string chunk(values.substr(std::min(values.size(), i * vector_bytes), vector_bytes));
    chunk.resize(vector_bytes);
    file += chunk;
    append_le(file, crc32c(chunk.data(), chunk.size(), crc32c(&i, sizeof(i), header_crc)));
  }
  return file;
}

absl::StatusOr<Checkpoint> read(std::string_view bytes) {
  static fuzz::MemoryFile file;
  file.assign(bytes);
  absl::StatusOr<Checkpoint> checkpoint = read_checkpoint(file.path());
  if (!checkpoint.ok()) fuzz::check_refusal(checkpoint.status(), absl::StatusCode::kDataLoss, file.path());
  return checkpoint;
}

void try_whole(std::string_view fields, std::string_view values) {
  const std::string file = whole_file(fields, values);
  if (file.empty()) return;
  const absl::StatusOr<Checkpoint> checkpoint = read(file);
  GRADRAIL_CHECK(checkpoint.ok() && encode_header(checkpoint->header) == fields);
  GRADRAIL_CHECK(checkpoint->parameters.size() == checkpoint->header.range.count);
  GRADRAIL_CHECK(checkpoint->state.size() == static_cast<size_t>(state_vectors(checkpoint->header.optimizer.kind)));
}

void try_altered(std::string_view fields, std::string_view values, size_t position, uint8_t change) {
  std::string file = whole_file(fields, values);
  if (file.empty() || change == 0) return;
  char& altered = file[position % file.size()];
  altered = static_cast<char>(altered ^ change);
  GRADRAIL_CHECK(!read(file).ok());
}

}  // namespace
}  // namespace gradrail::ps

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t bytes) {
  using namespace gradrail;
  using namespace gradrail::ps;
  gradrail::transport::common::ByteReader in(gradrail::fuzz::text_of(data, bytes));
  const auto use = in.number<uint8_t>();
  if (use == 0) {
    const absl::StatusOr<Checkpoint> checkpoint = read(in.rest());
    GRADRAIL_CHECK(!checkpoint.ok() || check_header(checkpoint->header).ok());
    return 0;
  }
  const auto position = in.number<uint16_t>();
  const auto change = in.number<uint8_t>();
  const std::string_view fields = in.text(UINT16_MAX);
  if (!in.ok()) return 0;
  if (use % 2 == 1) try_whole(fields, in.rest());
  if (use % 2 == 0) try_altered(fields, in.rest(), position, change);
  return 0;
}
