#include "ps/protocol/trace_marks.h"

#include <algorithm>

#include "base/check.h"
#include "fmt/format.h"
#include "ps/protocol/control.pb.h"

namespace gradrail::ps {
namespace {

bool is_time(int64_t nanoseconds) { return nanoseconds >= -kMaxTraceTime && nanoseconds <= kMaxTraceTime; }

}  // namespace

proto::TaskMarks to_proto(const std::string& task, const std::vector<Mark>& marks) {
  proto::TaskMarks message;
  message.set_task(task);
  int64_t before = 0;  // differences are small, and protobuf stores small numbers in few bytes.
  // The newest ones: the marks of all tasks must overlap in time to form one timeline.
  for (size_t i = marks.size() - std::min(marks.size(), kMaxTraceMarks); i < marks.size(); ++i) {
    const Mark& mark = marks[i];
    // Columns, not one message per mark: protobuf packs numbers of one field without a tag each.
    message.add_at_ns(mark.at_ns - before);
    message.add_step(mark.step);
    message.add_worker(mark.worker);
    message.add_shard(mark.shard);
    message.add_bucket(mark.bucket);
    message.add_kind(static_cast<uint32_t>(mark.kind));
    before = mark.at_ns;
  }
  GRADRAIL_CHECK(message.at_ns_size() == message.kind_size());
  return message;
}

absl::StatusOr<std::vector<Mark>> marks_from(const proto::TaskMarks& message) {
  const int count = message.at_ns_size();
  // The check precedes the allocation: another process sends the message.
  if (static_cast<size_t>(count) > kMaxTraceMarks)
    return absl::InvalidArgumentError(
        fmt::format("{} marks of {} are more than {}", count, message.task(), kMaxTraceMarks));
  for (const int size :
       {message.step_size(), message.worker_size(), message.shard_size(), message.bucket_size(), message.kind_size()}) {
    if (size != count)
      return absl::InvalidArgumentError(
          fmt::format("marks of {}: columns of {} and {} rows", message.task(), count, size));
  }
  const auto bad_time = [&message] {
    return absl::InvalidArgumentError(fmt::format("marks of {}: a time is out of range", message.task()));
  };
  if (!is_time(message.offset_ns()) || !is_time(message.bound_ns())) return bad_time();
  std::vector<Mark> marks;
  marks.reserve(static_cast<size_t>(count));
  uint64_t at_ns = 0;  // unsigned: a broken message may overflow it
  for (int i = 0; i < count; ++i) {
    at_ns += static_cast<uint64_t>(message.at_ns(i));
    if (!is_time(static_cast<int64_t>(at_ns))) return bad_time();
    if (message.kind(i) > static_cast<uint32_t>(Mark::Kind::applied))
      return absl::InvalidArgumentError(fmt::format("marks of {}: unknown kind {}", message.task(), message.kind(i)));
    marks.push_back({.at_ns = static_cast<int64_t>(at_ns),
                     .step = message.step(i),
                     .worker = message.worker(i),
                     .shard = message.shard(i),
                     .bucket = message.bucket(i),
                     .kind = static_cast<Mark::Kind>(message.kind(i))});
  }
  return marks;
}

}  // namespace gradrail::ps
