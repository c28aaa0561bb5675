// A data set of TFRecord files: an input is a list of tf.train.Examples, each with its length.
#include <google/protobuf/stubs/logging.h>

#include <string>

#include "base/check.h"
#include "base/status.h"
#include "tests/fuzz/fuzz.h"
#include "transport/common/byte_codec.h"
#include "worker/data/records.h"
#include "worker/data/tf_record.h"

namespace {

struct DataSet {
  gradrail::fuzz::MemoryFolder folder;
  gradrail::fuzz::MemoryFile file;

  DataSet() {
    folder.link("train.tfrecords", file);
    folder.link("test.tfrecords", file);
  }
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t bytes) {
  using namespace gradrail::worker;
  static const google::protobuf::LogSilencer kSilence;
  static DataSet set;
  gradrail::transport::common::ByteReader in(gradrail::fuzz::text_of(data, bytes));
  std::string file;
  while (true) {
    const std::string_view record = in.text(UINT16_MAX);
    if (!in.ok()) break;
    append_tf_record(file, record);
  }
  set.file.assign(file);
  const absl::StatusOr<MnistData> loaded = load_records(set.folder.path());
  if (!loaded.ok()) {
    gradrail::fuzz::check_refusal(loaded.status(), absl::StatusCode::kDataLoss, set.folder.path());
    return 0;
  }
  const Split& train = loaded->train;
  GRADRAIL_CHECK(train.count > 0 && train.labels.size() == train.count);
  GRADRAIL_CHECK(train.images.size() == train.count * train.pixels && train.images.size() <= bytes);
  for (const uint8_t label : train.labels) GRADRAIL_CHECK(label < 10);
  GRADRAIL_CHECK(train.size == ImageSize() ||
                 static_cast<size_t>(train.size.height * train.size.width * train.size.depth) == train.pixels);
  GRADRAIL_CHECK(loaded->test.count == train.count);
  return 0;
}
