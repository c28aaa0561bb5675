// A TFRecord file, which frames the files of events as well. The first byte of an input selects its use:
//
//   0  the file
//   1  a list of records, each with its length
//   2  as 1, with one other byte: no other record may be read
#include "worker/data/tf_record.h"

#include <string>
#include <vector>

#include "base/check.h"
#include "base/status.h"
#include "tests/fuzz/fuzz.h"
#include "transport/common/byte_codec.h"
#include "worker/data/packed_file.h"

namespace gradrail::worker {
namespace {

struct Content {
  std::vector<std::string> records;
  bool complete = false;
};

Content read(std::string_view bytes) {
  static fuzz::MemoryFile file;
  file.assign(bytes);
  const auto refuse = [&](const absl::Status& status) {
    fuzz::check_refusal(status, absl::StatusCode::kDataLoss, file.path());
  };
  Content content;
  absl::StatusOr<TfRecordReader> reader = TfRecordReader::open(file.path());
  if (!reader.ok()) {
    refuse(reader.status());
    return content;
  }
  size_t total = 0;
  std::string record;
  while (true) {
    const absl::StatusOr<bool> found = reader->next(record);
    if (!found.ok()) {
      refuse(found.status());
      return content;
    }
    if (!*found) break;
    total += record.size();
    GRADRAIL_CHECK(total <= bytes.size() * kMaxDeflateRatio);
    content.records.push_back(record);
  }
  GRADRAIL_CHECK(reader->index() == content.records.size());
  content.complete = true;
  return content;
}

}  // namespace
}  // namespace gradrail::worker

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t bytes) {
  using namespace gradrail::worker;
  gradrail::transport::common::ByteReader in(gradrail::fuzz::text_of(data, bytes));
  const auto use = in.number<uint8_t>();
  if (use == 0) {
    read(in.rest());
    return 0;
  }
  const auto position = in.number<uint16_t>();
  const auto change = static_cast<char>(in.number<uint8_t>());
  std::string file;
  std::vector<std::string> records;
  while (true) {
    const std::string_view record = in.text(UINT16_MAX);
    if (!in.ok()) break;
    records.emplace_back(record);
    append_tf_record(file, record);
  }
  const bool altered = use % 2 == 0 && change != 0 && !file.empty();
  if (altered) file[position % file.size()] = static_cast<char>(file[position % file.size()] ^ change);
  const Content content = read(file);
  if (altered) {
    GRADRAIL_CHECK(!content.complete && content.records.size() < records.size());
    records.resize(content.records.size());
  } else {
    GRADRAIL_CHECK(content.complete);
  }
  GRADRAIL_CHECK(content.records == records);
  return 0;
}
