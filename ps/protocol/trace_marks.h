#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "base/flight_recorder.h"

namespace gradrail::ps {

namespace proto {
class TaskMarks;
}

/// Marks of a task in one message: it stays below 1 MiB, and the chief holds one for each task.
constexpr size_t kMaxTraceMarks = 1 << 15;
/// Nanoseconds; 73 years. The sum or difference of four such numbers does not overflow.
constexpr int64_t kMaxTraceTime = (int64_t{1} << 61) - 1;

/// Converts the marks; if there are more than kMaxTraceMarks, the last ones, which precede the request.
proto::TaskMarks to_proto(const std::string& task, const std::vector<Mark>& marks);
/// Errors  INVALID_ARGUMENT: columns of different lengths, an unknown kind, more marks than to_proto() makes, or a time
///         beyond kMaxTraceTime. Sums and differences of the times, with the offset of their task, do not overflow.
absl::StatusOr<std::vector<Mark>> marks_from(const proto::TaskMarks& message);

}  // namespace gradrail::ps
