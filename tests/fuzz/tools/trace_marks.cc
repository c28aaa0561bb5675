// The marks of a flight recorder that another task sends, and the files that show them.
#include <google/protobuf/stubs/logging.h>

#include "base/check.h"
#include "nlohmann/json.hpp"
#include "ps/protocol/control.pb.h"
#include "ps/protocol/trace_marks.h"
#include "tests/fuzz/fuzz.h"
#include "tools/monitor/chrome_trace.h"
#include "tools/monitor/flight_dump.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t bytes) {
  using namespace gradrail;
  static const google::protobuf::LogSilencer kSilence;
  ps::proto::TaskMarks message;
  if (!message.ParseFromArray(data, static_cast<int>(bytes))) return 0;
  const absl::StatusOr<std::vector<Mark>> marks = ps::marks_from(message);
  if (!marks.ok()) {
    fuzz::check_refusal(marks.status(), absl::StatusCode::kInvalidArgument, "marks of " + message.task());
    return 0;
  }
  GRADRAIL_CHECK(marks->size() == static_cast<size_t>(message.at_ns_size()) && marks->size() <= ps::kMaxTraceMarks);
  const std::string text = tools::flight_text(*marks, message.task(), "fuzz", TimePoint());
  GRADRAIL_CHECK(static_cast<size_t>(std::count(text.begin(), text.end(), '\n')) >= 3 + marks->size());
  const std::string trace = tools::chrome_trace({{.task = message.task(), .marks = *marks}});
  GRADRAIL_CHECK(nlohmann::json::accept(trace));
  return 0;
}
