// The answers of parameter servers that `gradrail top` shows: two replies, the first with its length.
#include <google/protobuf/stubs/logging.h>

#include "base/check.h"
#include "tests/fuzz/fuzz.h"
#include "tools/monitor/top_table.h"
#include "transport/common/byte_codec.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t bytes) {
  using namespace gradrail;
  static const google::protobuf::LogSilencer kSilence;
  transport::common::ByteReader in(fuzz::text_of(data, bytes));
  std::vector<tools::PsAnswer> answers(2);
  const std::string_view replies[] = {in.text(UINT16_MAX), in.rest()};
  for (size_t i = 0; i < answers.size(); ++i) {
    answers[i].address = "10.0.0.1:2222";
    answers[i].at = TimePoint(std::chrono::seconds(i));
    if (!answers[i].stats.ParseFromArray(replies[i].data(), static_cast<int>(replies[i].size()))) return 0;
  }
  const std::vector<std::string> lines = tools::top_table({answers[1]}, {answers[0]});
  GRADRAIL_CHECK(lines.size() >= 2);
  // A reply must neither move the cursor of a terminal nor add lines to the table.
  for (const std::string& line : lines) {
    for (const char c : line) GRADRAIL_CHECK(static_cast<unsigned char>(c) >= ' ' && c != '\x7f');
  }
  return 0;
}
