#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "base/flight_recorder.h"
#include "ps/control.pb.h"

namespace gradrail::ps {

/// Marks of a task that are handed on: a message of the control plane holds so many.
constexpr size_t kMaxTraceMarks = 1 << 15;

/// The last of them, where there are more.
proto::TaskMarks to_proto(const std::string& task, const std::vector<Mark>& marks);
/// INVALID_ARGUMENT: columns of different lengths, an unknown kind, more marks than are ever sent.
absl::StatusOr<std::vector<Mark>> marks_from(const proto::TaskMarks& message);

}  // namespace gradrail::ps
